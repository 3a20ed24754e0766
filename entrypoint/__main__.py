"""The command line: `roundhouse` in the image, `python -m entrypoint` in a checkout."""

import contextlib
import json
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from entrypoint import doctor as doctors
from entrypoint import (
    health,
    hooks,
    launch,
    render,
    render_files,
    report,
    running,
    services,
    session,
    status,
    version,
    viewer,
)
from entrypoint.devices import visible_gpus
from entrypoint.eject import eject as copy_recipe
from entrypoint.errors import OWN_BUG, STOPPED, Problem, SettingError
from entrypoint.local import Nodes
from entrypoint.local import run as run_local
from entrypoint.masks import mask_text, secrets_of
from entrypoint.namespaces import Namespaces
from entrypoint.prepare import (
    Context,
    diagnose,
    diagnose_alone,
    first_look,
    make_draft,
    say,
    settings_so_far,
    tried,
    volume_of,
)
from entrypoint.probe import probe
from entrypoint.request import edits, read_request
from entrypoint.run_folder import RunFolder
from entrypoint.run_lock import living_holder
from entrypoint.runtime import runtime_of

_WHAT_THIS_IS = """\
Roundhouse trains a script on this node, or on all nodes of a cluster, without editing it.
  train ddp                 a small model on this machine, now; `train ddp --help` lists options
  train /path/to/script.py  a script of yours
  plan, doctor              what is understood of this machine and cluster, and what is wrong with it
  TRAIN_SCRIPT=ddp          set in the environment, starts training by itself"""
_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


class _Commands(click.Group):
    """Our commands; any other word is run as it is, so that `docker run IMAGE bash` gives bash."""

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(context, words[0]) is None and not words[0].startswith("-"):
            self._become(words)
        return super().resolve_command(context, words)

    def _become(self, words: list[str]) -> NoReturn:
        try:
            os.execvp(words[0], words)
        except OSError as error:
            near = min(self.commands, key=lambda name: edits(name, words[0]))
            meant = f"did you mean {near!r}? " if edits(near, words[0]) <= 2 else ""
            raise SettingError(
                f"{words[0]!r} is no command of ours and cannot be run: {error.strerror}",
                fix=f"{meant}ours: {', '.join(sorted(self.commands))}; a script wants its interpreter before it",
            ) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def cli(context: click.Context) -> None:
    """Take a training script from a laptop to a cluster without editing it."""
    context.obj = Context(services.variables_of(os.environ), Path.cwd())


@cli.command(context_settings=_PASS_ON)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="RECIPE [ARGUMENT]...")
@click.pass_obj
def train(context: Context, words: tuple[str, ...]) -> None:
    """Plan, check and run a recipe or a script; the exit code is the training's."""
    plan, draft = make_draft(context, words, may_wait=True)
    if plan.process_rank is not None:
        if not plan.process_rank:  # of many processes, one tells
            click.echo(report.to_text(plan, draft.facts, context.variables))
        launch.become(plan, context.variables)
    plan = launch.numbered(plan, draft, say=say)
    in_session = _on_terminal()
    if in_session:
        plan = replace(plan, session="tmux, where there is one; it goes on when this terminal is closed")
    plan = tried(context, plan, draft.facts)
    click.echo(report.to_text(plan, draft.facts, context.variables))
    launch.check_plan(plan)
    sys.exit(running.train_in_session(context, plan, draft) if in_session else running.train_here(context, plan, draft))


@cli.command(context_settings=_PASS_ON)
@click.option("--nodes", type=click.IntRange(2, 64), default=2, show_default=True)
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="of each node")
@click.option("--namespaces", is_flag=True, help="a network for each node, with a slow and a fast interface (root)")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="RECIPE [ARGUMENT]...")
@click.pass_obj
def local(context: Context, nodes: int, processes: int, namespaces: bool, words: tuple[str, ...]) -> None:
    """Try a cluster on this machine: several nodes, each a `train` of its own; they meet as on a real one."""
    volume = volume_of(context, read_request(context.variables))
    gpus = visible_gpus(context.variables.get("CUDA_VISIBLE_DEVICES"), probe(volume).gpus or ())
    if 0 < len(gpus) < nodes * processes:
        click.echo(f"{len(gpus)} GPUs are too few for {nodes * processes} processes; they train on the CPU", err=True)
    # The machine is not one node's to stop.
    variables = {**context.variables, "TRAIN_VOLUME": str(volume), "TRAIN_ON_EXIT": "exit"}
    with contextlib.ExitStack() as stack:
        networks = stack.enter_context(Namespaces(nodes)) if namespaces else None
        cluster = stack.enter_context(
            Nodes(
                nodes,
                processes,
                words,
                variables,
                namespaces=networks,
                gpus=gpus,
                say=lambda number, line: click.echo(f"node {number} | {line}"),
            )
        )
        code = run_local(cluster, tell=lambda line: click.echo(f"local  | {line}", err=True))
    sys.exit(code)


@cli.command()
@click.pass_obj
def up(context: Context) -> None:
    """What the image runs: training where TRAIN_SCRIPT is set, else what this is and how to start."""
    sys.exit(_up(context))


def _up(context: Context) -> int:
    """Hooks, services, and in their midst the training. What keeps it from beginning does not end the services."""
    try:
        hooks.before_services(context.variables, say)
        volume, why, wrong = first_look(context)
        if wrong is None and not why and not read_request(context.variables).script:
            click.echo(_WHAT_THIS_IS)
            return 0
        with services.beside(
            context.variables,
            volume,
            lambda: settings_so_far(context),
            say,
            always=version.BUILD.exists() and running.is_main_process(),
        ) as side:
            return _among_services(context, volume, why, wrong, side)
    except hooks.Stopped:
        return STOPPED


def _among_services(
    context: Context, volume: Path, why: str | None, wrong: Problem | None, side: services.Beside
) -> int:
    try:
        if wrong is not None:
            raise wrong
        hooks.after_services(context.variables, volume, say)
        if not read_request(context.variables).script:
            click.echo(_WHAT_THIS_IS)
            running.stay(why or "", side)
        plan, draft = make_draft(context, (), may_wait=True, is_up=True)
        plan = launch.numbered(plan, draft, say=say)
        plan = replace(plan, session=f"tmux session {session.OFFERED!r}, where there is tmux; `attach` shows it")
        plan = tried(context, plan, draft.facts)
        click.echo(report.to_text(plan, draft.facts, context.variables))
        launch.check_plan(plan)
        return running.train_beside(context, plan, draft, side)
    except Problem as problem:
        return running.refused(context, problem, side)
    except hooks.Stopped:
        raise
    except Exception:  # where a container that has ended is started again, it would fail for ever
        traceback.print_exc()
        return running.refused(context, Problem("this is a bug of ours", fix="please report the lines above"), side)


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


@cli.command()
@click.argument("run", required=False)
@click.pass_obj
def attach(context: Context, run: str | None) -> None:
    """Show a run until it ends (its exit code) or the terminal leaves it (0)."""
    folder = _find(context, run)
    if not _on_terminal() and living_holder(folder.lock):
        viewer.Follower(folder).follow()
    sys.exit(running.attach(context, folder))


@cli.command()
@click.argument("run", required=False)
@click.option("-f", "--follow", is_flag=True, help="go on until the run ends")
@click.option("-n", "--lines", default=200, show_default=True, help="of each process")
@click.option("--json", "as_json", is_flag=True, help="for programs: one object a line")
@click.pass_obj
def logs(context: Context, run: str | None, follow: bool, lines: int, as_json: bool) -> None:
    """Print what the processes of the newest attempt wrote last."""
    folder = _find(context, run)
    if follow and not as_json:
        viewer.Follower(folder, lines=lines).follow()
        return
    for name, line in status.newest_logs(folder, lines):
        click.echo(json.dumps({"process": name, "line": line}) if as_json else viewer.prefixed(name, line))


@cli.command("status")
@click.argument("run", required=False)
@click.option("--all", "every", is_flag=True, help="every run of the volume, the newest first")
@click.option("--json", "as_json", is_flag=True, help="for programs; with --all a list")
@click.pass_obj
def status_command(context: Context, run: str | None, every: bool, as_json: bool) -> None:
    """Say how a run is: state, step, loss, attempt, exit code; its files tell it after its end too.

    Then the services. The run's exit code is this command's.
    """
    if every:
        volume = volume_of(context, read_request(context.variables))
        listed = [status.read_status(folder) for folder in status.all_runs(volume)]
        click.echo(json.dumps(listed, indent=1) if as_json else "\n".join(map(status.to_text, listed)) or "no run yet")
        return
    here, refused = services.told_here(), runtime_of(context.variables).refused()
    try:
        # Runs that lie on the volume are another start's.
        found = status.without_run(refused) if refused and not run else status.read_status(_find(context, run))
    except SettingError:
        if run or not here:
            raise
        found = status.without_run(None)
    found["services"] = here or found.get("services", [])
    click.echo(json.dumps(found, indent=1) if as_json else status.to_text(found))
    sys.exit(status.exit_code(found))


def _find(context: Context, run: str | None) -> RunFolder:
    request = read_request(context.variables)
    return status.find_run(volume_of(context, request), run or request.run)


@cli.command("health", hidden=True, context_settings=_PASS_ON)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def health_command(context: Context, words: tuple[str, ...]) -> None:
    """What the image's HEALTHCHECK asks: 0, or 1 where no step is made any more or the run has failed."""
    sys.exit(health.main(words, context.variables))


@cli.command(context_settings=_PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="for programs")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[RECIPE [ARGUMENT]...]")
@click.pass_obj
def plan(context: Context, as_json: bool, words: tuple[str, ...]) -> None:
    """Print what would be done, with the reasons; change nothing."""
    as_json = as_json or words[-1:] == ("--json",)
    words = words[:-1] if words[-1:] == ("--json",) else words
    made, draft = make_draft(context, words, may_wait=False, is_up=not words)
    click.echo(
        report.to_json(made, context.variables) if as_json else report.to_text(made, draft.facts, context.variables)
    )


@cli.command(context_settings=_PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="for programs")
@click.option("--all", "every", is_flag=True, help="a line for each question, also where all is well")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[RECIPE [ARGUMENT]...]")
@click.pass_obj
def doctor(context: Context, as_json: bool, every: bool, words: tuple[str, ...]) -> None:
    """Check this node: its GPUs, volume, limits, versions; 69 if something forbids training here."""
    as_json, every = as_json or "--json" in words[-1:], every or "--all" in words[-1:]
    if words[-1:] in (("--json",), ("--all",)):
        words = words[:-1]
    try:
        made, draft = make_draft(context, words, may_wait=False)
        facts = draft.facts
        found = diagnose(context, made, draft)
    except Problem as error:
        found, facts = diagnose_alone(context, error)
    click.echo(doctors.to_json(found, facts) if as_json else doctors.to_text(found, every=every))
    sys.exit(doctors.exit_code(found))


@cli.command()
@click.argument("recipe")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.pass_obj
def eject(context: Context, recipe: str, folder: Path) -> None:
    """Copy a recipe and what it imports into a folder of yours."""
    for path in copy_recipe(recipe, context.base / folder):
        click.echo(f"wrote {path}")


@cli.command("version")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def version_command(as_json: bool) -> None:
    """Say what this is: versions, commit, and in the image all that it was built from."""
    found = version.read_version()
    click.echo(json.dumps(found, indent=1) if as_json else version.to_text(found))


@cli.command("render", epilog=f"\b\n{render.listing()}")
@click.argument("platform", default="list")
@click.option("--script", help="as --set script=…")
@click.option("--nodes", help="as --set nodes=…")
@click.option("--gpus", help="as --set gpus=…; on each node")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="any key of the list below")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="a file, or for `all` a folder")
@click.pass_obj
def render_command(
    context: Context,
    platform: str,
    script: str | None,
    nodes: str | None,
    gpus: str | None,
    pairs: tuple[str, ...],
    output: Path | None,
) -> None:
    """Print a platform's template, filled in; `render list` names platforms and keys."""
    if platform == "list":
        click.echo(render.listing())
        return
    named = {"script": script, "nodes": nodes, "gpus": gpus}
    given = render.read_pairs(pairs) | {key: text for key, text in named.items() if text is not None}
    if platform == "all":
        for path in render_files.write_all(render.ready_made_only(given), output and context.base / output):
            click.echo(f"wrote {path}")
    elif output is None:
        click.echo(render.render(platform, given), nl=False)
    else:
        render_files.write(context.base / output, render.render(platform, given))


def main() -> None:
    """Run the command; a Problem is one line and its fix, anything else our own bug."""
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(78)
    except click.Abort:
        sys.exit(130)
    except Problem as problem:
        print(mask_text(f"error: {problem}", secrets_of(os.environ)), file=sys.stderr)
        sys.exit(problem.exit_code)
    except Exception:
        traceback.print_exc()
        print(f"error: this is a bug of ours (exit code {OWN_BUG}); please report the lines above", file=sys.stderr)
        sys.exit(OWN_BUG)


if __name__ == "__main__":
    main()
