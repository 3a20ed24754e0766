"""The command line: `roundhouse` in the image, `python -m entrypoint` in a checkout."""

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from entrypoint import agent, launch, render, render_files, report, scripts, session, status, version, viewer
from entrypoint import doctor as doctors
from entrypoint.checkpoint_size import checkpoint_bytes
from entrypoint.checks import check
from entrypoint.cluster import make_cluster
from entrypoint.devices import visible_gpus
from entrypoint.eject import eject as copy_recipe
from entrypoint.environment import Environment, read_environment
from entrypoint.errors import OWN_BUG, MachineError, NodesError, Problem, SettingError
from entrypoint.examine import examine
from entrypoint.facts import Facts
from entrypoint.local import Nodes
from entrypoint.local import run as run_local
from entrypoint.mount import parse_mount, refuse_unshared
from entrypoint.mount_volume import mount_volume
from entrypoint.names import resolve
from entrypoint.namespaces import Namespaces
from entrypoint.plan import Draft, Plan, all_checks
from entrypoint.preflight import preflight
from entrypoint.probe import probe
from entrypoint.probe_machine import DIRECTORY_SECONDS, answer_within
from entrypoint.reasons import Check, findings_of
from entrypoint.recipes import Recipe, choose_recipe, refuse_wrong_options, split_arguments
from entrypoint.request import Request, edits, read_request
from entrypoint.run_folder import RunFolder
from entrypoint.run_lock import living_holder
from entrypoint.screen import LogTail
from entrypoint.stay import reason_to_stay
from entrypoint.values import clean
from entrypoint.volume import DEFAULT_VOLUME, choose_volume

_WHAT_THIS_IS = """\
Roundhouse trains a script on this node, or on all nodes of a cluster, without editing it.
  train ddp                 a small model on this machine, now; `train ddp --help` lists options
  train /path/to/script.py  a script of yours
  plan, doctor              what is understood of this machine and cluster, and what is wrong with it
  TRAIN_SCRIPT=ddp          set in the environment, starts training by itself"""
_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@dataclass(frozen=True, slots=True)
class Context:
    """The only place that knows the process environment and the working directory."""

    variables: Mapping[str, str]
    base: Path


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
    context.obj = Context(dict(os.environ), Path.cwd())


@cli.command(context_settings=_PASS_ON)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="RECIPE [ARGUMENT]...")
@click.pass_obj
def train(context: Context, words: tuple[str, ...]) -> None:
    """Plan, check and run a recipe or a script; the exit code is the training's."""
    plan, draft = _plan(context, words, may_wait=True)
    if plan.process_rank is not None:
        if not plan.process_rank:  # of many processes, one tells
            click.echo(report.to_text(plan, draft.facts))
        launch.become(plan, context.variables)
    plan = launch.numbered(plan, draft, say=_say)
    in_session = _on_terminal()
    if in_session:
        plan = replace(plan, session="tmux, where there is one; it goes on when this terminal is closed")
    plan = _tried(context, plan, draft.facts)
    click.echo(report.to_text(plan, draft.facts))
    launch.check_plan(plan)
    sys.exit(_train_in_session(context, plan, draft) if in_session else _train_here(context, plan, draft))


@cli.command(context_settings=_PASS_ON)
@click.option("--nodes", type=click.IntRange(2, 64), default=2, show_default=True)
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="of each node")
@click.option("--namespaces", is_flag=True, help="a network for each node, with a slow and a fast interface (root)")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="RECIPE [ARGUMENT]...")
@click.pass_obj
def local(context: Context, nodes: int, processes: int, namespaces: bool, words: tuple[str, ...]) -> None:
    """Try a cluster on this machine: several nodes, each a `train` of its own; they meet as on a real one."""
    volume = _volume(context, read_request(context.variables))
    gpus = visible_gpus(context.variables.get("CUDA_VISIBLE_DEVICES"), probe(volume).gpus or ())
    if 0 < len(gpus) < nodes * processes:
        click.echo(f"{len(gpus)} GPUs are too few for {nodes * processes} processes; they train on the CPU", err=True)
    variables = {**context.variables, "TRAIN_VOLUME": str(volume)}
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
    if not read_request(context.variables).script:
        click.echo(_WHAT_THIS_IS)
        request, environment = read_request(context.variables), read_environment(context.variables)
        volume = context.base / choose_volume(request.volume, context.variables)[0]
        _mount(context, request, environment, volume, now=True)
        if why := reason_to_stay(read_environment(context.variables).provider, context.variables):
            _stay(why)
        return
    plan, draft = _plan(context, (), may_wait=True)
    plan = launch.numbered(plan, draft, say=_say)
    plan = replace(plan, session=f"tmux session {session.OFFERED!r}, where there is tmux; `attach` shows it")
    plan = _tried(context, plan, draft.facts)
    click.echo(report.to_text(plan, draft.facts))
    launch.check_plan(plan)
    sys.exit(_train_beside(context, plan, draft))


def _stay(why: str) -> None:
    """Until a signal: the machine is the person's, who comes in by other doors."""
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    click.echo(f"{why}: this container stays, without training, until it is stopped")
    sys.exit(128 + signal.sigwait(stops))


def _tried(context: Context, plan: Plan, facts: Facts) -> Plan:
    """The plan with what is found by trying, unless there is nothing to start or it is forbidden already."""
    if plan.recipe is None or any(finding.level == "stop" for finding in plan.findings):
        return plan
    return replace(plan, findings=plan.findings + findings_of(preflight(plan, facts, context.variables, say=_say)))


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _is_main_process() -> bool:
    """Process 1 or its child: whatever runs here (a container, a unit) ends when this process does.

    A process that `docker exec` starts has parent 0.
    """
    return os.getpid() == 1 or os.getppid() == 1


def _train_here(context: Context, plan: Plan, draft: Draft) -> int:
    """In the foreground: this process is the agent, and a thread shows the run."""
    start = launch.open_run(plan, draft, say=_say)
    if start.finished:
        click.echo(start.finished)
        return 0
    with viewer.showing(start.folder, LogTail(start.folder.logs, node=start.folder.node)):
        code = launch.train(start, context.variables, by_hand=sys.stdin.isatty())
    return viewer.tell_end(start.folder, sys.stderr, code)


def _train_beside(context: Context, plan: Plan, draft: Draft) -> int:
    """The agent as a child of this process, which shows the run and is free for what else belongs to a container."""
    folder = launch.folder_of(plan)
    tail = LogTail(folder.logs, node=folder.node)
    child = agent.start(_agent_of(context, plan, draft, by_hand=False), None, kept=True)
    if child.finished:
        click.echo(child.finished)
        return child.wait()
    session.offer(folder, context.variables)
    with viewer.showing(folder, tail):
        code = child.wait()
    return viewer.tell_end(folder, sys.stderr, code)


def _train_in_session(context: Context, plan: Plan, draft: Draft) -> int:
    """On a terminal: the agent in the background, which the terminal's end does not reach, and a view of it here."""
    folder, kept = launch.folder_of(plan), _is_main_process()
    child = agent.start(_agent_of(context, plan, draft, by_hand=True), folder.agent_log, kept=kept)
    if child.finished:
        click.echo(child.finished)
        return 0
    if not kept:
        return _attach(context, folder)
    session.attach(folder, context.variables)
    if living_holder(folder.lock):
        click.echo(f"{folder.path.name} goes on, and this container with it; `attach` in it shows the run again")
        viewer.Follower(folder).follow()
    code = child.wait()
    _tell_last_lines(folder)
    return viewer.tell_end(folder, sys.stderr, code)


def _agent_of(context: Context, plan: Plan, draft: Draft, *, by_hand: bool) -> agent.Body:
    def body(ready: Callable[[str | None], None]) -> int:
        start = launch.open_run(plan, draft, say=_say)
        ready(start.finished)
        return 0 if start.finished else launch.train(start, context.variables, by_hand=by_hand)

    return body


def _say(line: str) -> None:
    click.echo(line, err=True)


def _attach(context: Context, folder: RunFolder) -> int:
    """Show it here; the run's exit code if it is over, 0 if only the person has left."""
    session.attach(folder, context.variables)
    if living_holder(folder.lock):
        click.echo(f"{folder.path.name} goes on; `attach {folder.path.name}` shows it again")
        return 0
    _tell_last_lines(folder)
    return viewer.tell_end(folder, sys.stderr)


def _tell_last_lines(folder: RunFolder) -> None:
    """A tmux session takes its screen with it when it ends."""
    for name, line in status.newest_logs(folder, 15):
        if name == f"n{folder.node}r0":
            click.echo(viewer.prefixed(name, line))
    click.echo(f"the run is in {folder.path}")


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
    return status.find_run(_volume(context, request), run or request.run)


def _volume(context: Context, request: Request) -> Path:
    """Where runs lie, without a plan."""
    path, _ = choose_volume(request.volume, context.variables)
    here = path == DEFAULT_VOLUME and not path.is_dir()
    return context.base / ("workspace" if here else path)


@cli.command(context_settings=_PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="for programs")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[RECIPE [ARGUMENT]...]")
@click.pass_obj
def plan(context: Context, as_json: bool, words: tuple[str, ...]) -> None:
    """Print what would be done, with the reasons; change nothing."""
    as_json = as_json or words[-1:] == ("--json",)
    made, draft = _plan(context, words[:-1] if words[-1:] == ("--json",) else words, may_wait=False)
    click.echo(report.to_json(made) if as_json else report.to_text(made, draft.facts))


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
        made, draft = _plan(context, words, may_wait=False)
        facts = draft.facts
        found = _diagnose(context, made, draft)
    except Problem as error:
        found, facts = _diagnose_alone(context, error)
    click.echo(doctors.to_json(found, facts) if as_json else doctors.to_text(found, every=every))
    sys.exit(doctors.exit_code(found))


def _diagnose_alone(context: Context, problem: Problem) -> tuple[tuple[Check, ...], Facts]:
    """Without a plan: this machine as if it were the only one."""
    wanted = clean(context.variables.get("TRAIN_VOLUME", ""))
    volume = context.base / choose_volume(Path(wanted) if wanted else None, context.variables)[0]
    facts = probe(volume)
    chosen = context.variables.get("CUDA_VISIBLE_DEVICES")
    gpus = len(facts.gpus or ())
    alone = make_cluster(read_environment({}), gpus, facts.listening_ports)
    seen = check(alone, facts, gpus=gpus, chosen=chosen is not None, named=True, is_process=False)
    examined = examine(facts, (), context.variables, volume if facts.volume.exists else None, speed=True)
    return doctors.diagnose(facts, examined, plan=None, found=seen, problem=problem), facts


def _diagnose(context: Context, made: Plan, draft: Draft) -> tuple[Check, ...]:
    facts, volume = draft.facts, made.directories.volume
    if facts.gpus:
        click.echo("looking at the GPUs and the volume (some seconds)", err=True)
    is_process = made.process_rank is not None
    found = all_checks(made.cluster, facts, draft.request, context.variables, volume, is_process=is_process)
    # One that does not answer is not asked twice, and what lies below a mount to come does not matter.
    to_come = draft.request.mount is not None and facts.volume.mount_point != str(volume)
    to_try = None if facts.volume.exists is None or to_come else volume
    examined = examine(facts, made.settings, context.variables, to_try, speed=True)
    size, keep = checkpoint_bytes(made.recipe)
    return doctors.diagnose(facts, examined, plan=made, found=found, problem=None, checkpoint_bytes=size, keep=keep)


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


def _plan(context: Context, words: tuple[str, ...], *, may_wait: bool) -> tuple[Plan, Draft]:
    request = read_request(context.variables)
    wait_seconds = request.wait_seconds if may_wait else 0
    if words[:1] == ("-m",):  # as Python takes it; TRAIN_SCRIPT holds both words in one
        words = (" ".join(words[:2]), *words[2:])
    script, *arguments = words or ((request.script,) if request.script else (None,))
    recipe: Recipe | None = None
    if script is not None:
        given = tuple(arguments) if words else split_arguments(request.arguments)
        recipe = _completed(choose_recipe(script, given, base=context.base))
    environment = read_environment(context.variables)
    volume = context.base / choose_volume(request.volume, context.variables)[0]
    _mount(context, request, environment, volume, now=may_wait)
    look = partial(
        probe,
        volume,
        nccl_conf_file=context.variables.get("NCCL_CONF_FILE"),
    )
    facts = _look(look, environment, wait_seconds)
    draft = Draft(environment, facts, request, recipe, context.variables, context.base, in_image=version.BUILD.exists())
    made = draft.plan()
    if recipe is not None:
        refuse_wrong_options(recipe, made.cluster.world_size)
    return made, draft


def _completed(recipe: Recipe) -> Recipe:
    """The recipe with its interpreter, which the script's first line tells; it may lie on a volume that hangs."""
    try:
        return answer_within(DIRECTORY_SECONDS, lambda: scripts.complete(recipe))
    except TimeoutError:
        raise MachineError(
            f"{recipe.script} does not answer", fix="is the server of its file system gone? Mount it again"
        ) from None


def _mount(context: Context, request: Request, environment: Environment, volume: Path, *, now: bool) -> None:
    if request.mount is None:
        return
    refuse_unshared(parse_mount(request.mount), environment.nodes or 1)
    if now:
        mount_volume(request.mount, volume, context.variables, say=_say)


def _look(look: Callable[..., Facts], environment: Environment, wait_seconds: float) -> Facts:
    """The facts, with the route to the primary under the name that the environment gave it."""
    name = environment.primary_address
    if name is None or environment.nodes == 1:
        return look()
    try:
        address = resolve(name, wait_seconds=wait_seconds, say=_say)
    except NodesError:
        if wait_seconds:
            raise
        return look()  # a plan is shown all the same; its network then rests on what else is known
    facts = look(targets=(address,))
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
