"""The command line: `roundhouse` in the image, `python -m entrypoint` in a checkout."""

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click

from entrypoint import launch, render, render_files, report, scripts, session, status, viewer
from entrypoint.eject import eject as copy_recipe
from entrypoint.environment import Environment, read_environment
from entrypoint.errors import OWN_BUG, NodesError, Problem
from entrypoint.facts import Facts
from entrypoint.names import resolve
from entrypoint.plan import DEFAULT_VOLUME, Plan, make_plan
from entrypoint.probe import probe
from entrypoint.recipes import Recipe, choose_recipe, refuse_wrong_options, split_arguments
from entrypoint.request import read_request
from entrypoint.run_folder import RunFolder
from entrypoint.run_lock import living_holder
from entrypoint.screen import LogTail

_BUILD = Path(__file__).resolve().parent.parent / "build.json"  # the image has one, a checkout has not
_WHAT_THIS_IS = """\
Roundhouse trains a script on this node, or on all nodes of a cluster, without editing it.
  train ddp                 a small model on this machine, now; `train ddp --help` lists options
  train /path/to/script.py  a script of yours
  plan                      what is understood of this machine and cluster, and why
  TRAIN_SCRIPT=ddp          set in the environment, starts training by itself"""
_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@dataclass(frozen=True, slots=True)
class Context:
    """The only place that knows the process environment and the working directory."""

    variables: Mapping[str, str]
    base: Path


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def cli(context: click.Context) -> None:
    """Take a training script from a laptop to a cluster without editing it."""
    context.obj = Context(dict(os.environ), Path.cwd())


@cli.command(context_settings=_PASS_ON)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="RECIPE [ARGUMENT]...")
@click.pass_obj
def train(context: Context, words: tuple[str, ...]) -> None:
    """Plan, check and run a recipe or a script; the exit code is the training's."""
    plan, facts = _plan(context, words, may_wait=True)
    if plan.process_rank is not None:
        if not plan.process_rank:  # of many processes, one tells
            click.echo(report.to_text(plan, facts))
        launch.become(plan, context.variables)
    in_session = _on_terminal() and launch.is_numbered(plan)
    if in_session:
        plan = replace(plan, session="tmux, where there is one; it goes on when this terminal is closed")
    click.echo(report.to_text(plan, facts))
    launch.check_plan(plan)
    sys.exit(_train_in_session(context, plan) if in_session else _train_here(context, plan, by_hand=sys.stdin.isatty()))


@cli.command()
@click.pass_obj
def up(context: Context) -> None:
    """What the image runs: training where TRAIN_SCRIPT is set, else what this is and how to start."""
    if not read_request(context.variables).script:
        click.echo(_WHAT_THIS_IS)
        return
    plan, facts = _plan(context, (), may_wait=True)
    click.echo(report.to_text(plan, facts))
    launch.check_plan(plan)
    sys.exit(_train_here(context, plan, by_hand=False))


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _train_here(context: Context, plan: Plan, *, by_hand: bool) -> int:
    """In the foreground: this process is the agent, and a thread shows the run, which may be stuck in a full pipe."""
    start = launch.open_run(plan, say=lambda line: click.echo(line, err=True))
    if start.finished:
        click.echo(start.finished)
        return 0
    over = threading.Event()
    shown = (LogTail(start.folder.logs, node=start.folder.node), start.folder, sys.stdout, over.is_set)
    screen = threading.Thread(target=viewer.show, args=shown, daemon=True)
    screen.start()
    code = launch.train(start, context.variables, by_hand=by_hand)
    over.set()
    screen.join(timeout=30)
    viewer.tell_end(start.folder, sys.stderr)
    return code


def _train_in_session(context: Context, plan: Plan) -> int:
    """On a terminal: the agent in the background, which the terminal's end does not reach, and a view of it here."""
    folder = launch.folder_of(plan)

    def agent(ready: Callable[[str | None], None]) -> int:
        start = launch.open_run(plan, say=lambda line: click.echo(line, err=True))
        ready(start.finished)
        return 0 if start.finished else launch.train(start, context.variables, by_hand=True)

    finished = session.start_agent(agent, folder.agent_log)
    if finished:
        click.echo(finished)
        return 0
    return _attach(context, folder)


def _attach(context: Context, folder: RunFolder) -> int:
    """Show it here; the run's exit code if it is over, 0 if only the person has left."""
    session.attach(folder, context.variables)
    if living_holder(folder.lock):
        click.echo(f"{folder.path.name} goes on; `attach {folder.path.name}` shows it again")
        return 0
    for name, line in status.newest_logs(folder, 15):  # a session takes its screen with it when it ends
        if name == f"n{folder.node}r0":
            click.echo(viewer.prefixed(name, line))
    click.echo(f"the run is in {folder.path}")
    return viewer.tell_end(folder, sys.stderr)


@cli.command()
@click.argument("run", required=False)
@click.pass_obj
def attach(context: Context, run: str | None) -> None:
    """Show a run until it ends (its exit code) or the terminal leaves it (0)."""
    folder = _find(context, run)
    if not _on_terminal() and living_holder(folder.lock):
        viewer.Follower(folder).follow()
    sys.exit(_attach(context, folder))


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
@click.option("--json", "as_json", is_flag=True, help="for programs")
@click.pass_obj
def status_command(context: Context, run: str | None, as_json: bool) -> None:
    """Say how a run is: state, step, loss, attempt, exit code; from its files, also after its end."""
    found = status.read_status(_find(context, run))
    click.echo(json.dumps(found, indent=1) if as_json else status.to_text(found))


def _find(context: Context, run: str | None) -> RunFolder:
    request = read_request(context.variables)
    if request.volume:
        volume = context.base / request.volume
    else:
        volume = DEFAULT_VOLUME if DEFAULT_VOLUME.is_dir() else context.base / "workspace"
    return status.find_run(volume, run or request.run)


@cli.command(context_settings=_PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="for programs")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[RECIPE [ARGUMENT]...]")
@click.pass_obj
def plan(context: Context, as_json: bool, words: tuple[str, ...]) -> None:
    """Print what would be done, with the reasons; change nothing."""
    as_json = as_json or words[-1:] == ("--json",)
    made, facts = _plan(context, words[:-1] if words[-1:] == ("--json",) else words, may_wait=False)
    click.echo(report.to_json(made) if as_json else report.to_text(made, facts))


@cli.command()
@click.argument("recipe")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.pass_obj
def eject(context: Context, recipe: str, folder: Path) -> None:
    """Copy a recipe and what it imports into a folder of yours."""
    for path in copy_recipe(recipe, context.base / folder):
        click.echo(f"wrote {path}")


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


def _plan(context: Context, words: tuple[str, ...], *, may_wait: bool) -> tuple[Plan, Facts]:
    request = read_request(context.variables)
    wait_seconds = request.wait_seconds if may_wait else 0
    if words[:1] == ("-m",):  # as Python takes it; TRAIN_SCRIPT holds both words in one
        words = (" ".join(words[:2]), *words[2:])
    script, *arguments = words or ((request.script,) if request.script else (None,))
    recipe: Recipe | None = None
    if script is not None:
        given = tuple(arguments) if words else split_arguments(request.arguments)
        recipe = scripts.complete(choose_recipe(script, given, base=context.base))
    environment = read_environment(context.variables)
    facts = _look(context.base / (request.volume or DEFAULT_VOLUME), environment, wait_seconds)
    made = make_plan(
        environment, facts, request, recipe, variables=context.variables, base=context.base, in_image=_BUILD.exists()
    )
    if recipe is not None:
        refuse_wrong_options(recipe, made.cluster.world_size)
    return made, facts


def _look(volume: Path, environment: Environment, wait_seconds: float) -> Facts:
    """The facts, with the route to the primary under the name that the environment gave it."""
    name = environment.primary_address
    if name is None or environment.nodes == 1:
        return probe(volume)
    try:
        address = resolve(name, wait_seconds=wait_seconds, say=lambda line: click.echo(line, err=True))
    except NodesError:
        if wait_seconds:
            raise
        return probe(volume)  # a plan is shown all the same; its network then rests on what else is known
    facts = probe(volume, targets=(address,))
    return replace(facts, routes=tuple((name, source) for _, source in facts.routes))


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
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    except Exception:
        traceback.print_exc()
        print(f"error: this is a bug of ours (exit code {OWN_BUG}); please report the lines above", file=sys.stderr)
        sys.exit(OWN_BUG)


if __name__ == "__main__":
    main()
