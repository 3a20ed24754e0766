"""A run and who looks at it: in the foreground, beside a container's main process, or in a terminal's session."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import click

from entrypoint import agent, launch, session, status, viewer
from entrypoint.afterwards import Afterwards, End
from entrypoint.ending import Ending
from entrypoint.errors import STOPPED, Problem
from entrypoint.interrupts import Interrupts
from entrypoint.masks import mask_text, secrets_of
from entrypoint.plan import Draft, Plan
from entrypoint.prepare import Context, ending_alone, say
from entrypoint.run_folder import RunFolder, read_json
from entrypoint.run_lock import living_holder
from entrypoint.runtime import State, runtime_of
from entrypoint.screen import LogTail
from entrypoint.services import Beside


def is_main_process() -> bool:
    """Process 1 or its child: whatever runs here (a container, a unit) ends when this process does.

    A process that `docker exec` starts has parent 0.
    """
    return os.getpid() == 1 or os.getppid() == 1


def train_here(context: Context, plan: Plan, draft: Draft) -> int:
    """In the foreground: this process is the agent, and a thread shows the run."""
    start = launch.open_run(plan, draft, say=say)
    state = runtime_of(context.variables).begin(start.folder.path, start.folder.node)
    if start.finished:
        click.echo(start.finished)
        return _conclude(context, plan.ending, state, End(0, start.folder), Interrupts())
    with viewer.showing(start.folder, LogTail(start.folder.logs, node=start.folder.node)):
        code = launch.train(start, context.variables, by_hand=sys.stdin.isatty())
    code = viewer.tell_end(start.folder, sys.stderr, code)
    return _conclude(context, plan.ending, state, _end(start.folder, code), Interrupts())


def train_beside(context: Context, plan: Plan, draft: Draft, services: Beside) -> int:
    """The agent as a child of this process, which shows the run and is free for what else belongs to a container."""
    folder = launch.folder_of(plan)
    tail = LogTail(folder.logs, node=folder.node)
    child = agent.start(_agent_of(context, plan, draft, by_hand=False), None, kept=True)
    state = runtime_of(context.variables).begin(folder.path, folder.node)
    if child.finished:
        click.echo(child.finished)
        end = End(child.wait(services.ended), folder)
    else:
        session.offer(folder, context.variables)
        services.join(folder, plan.settings)
        with viewer.showing(folder, tail):
            code = child.wait(services.ended)
        end = _end(folder, viewer.tell_end(folder, sys.stderr, code))
    return _conclude(context, plan.ending, state, end, Interrupts(lambda: child.asked), services)


def refused(context: Context, problem: Problem, services: Beside) -> int:
    """The container's own start came to nothing: said, and then what follows a failure of the training too."""
    text = mask_text(f"error: {problem}", secrets_of(context.variables))
    say(text)
    if problem.exit_code == STOPPED:
        return STOPPED
    state = runtime_of(context.variables).begin(None, 0)
    end = End(problem.exit_code, None, text)
    return _conclude(context, ending_alone(context), state, end, Interrupts(), services)


def _conclude(
    context: Context, ending: Ending, state: State, end: End, interrupts: Interrupts, services: Beside | None = None
) -> int:
    """`services`: of the container's own process, which may stay with them."""
    after = Afterwards(
        ending,
        context.variables,
        runtime_of(context.variables),
        state,
        may_stay=services is not None,
        say=say,
        interrupts=interrupts,
        collect=partial(_collect, services) if services else lambda: None,
    )
    return after.conclude(end)


def _end(folder: RunFolder, code: int) -> End:
    ended = read_json(folder.of_node("exit.json")) or {}
    return End(code, folder, ended.get("text"))


def train_in_session(context: Context, plan: Plan, draft: Draft) -> int:
    """On a terminal: the agent in the background, which the terminal's end does not reach, and a view of it here."""
    folder, kept = launch.folder_of(plan), is_main_process()
    child = agent.start(_agent_of(context, plan, draft, by_hand=True, alone=True), folder.agent_log, kept=kept)
    if child.finished:
        click.echo(child.finished)
        return 0
    if not kept:
        return attach(context, folder)
    session.attach(folder, context.variables)
    if living_holder(folder.lock):
        click.echo(f"{folder.path.name} goes on, and this container with it; `attach` in it shows the run again")
        viewer.Follower(folder).follow()
    code = child.wait()
    _tell_last_lines(folder)
    return viewer.tell_end(folder, sys.stderr, code)


def _agent_of(context: Context, plan: Plan, draft: Draft, *, by_hand: bool, alone: bool = False) -> agent.Body:
    """`alone`: who started it may have gone when it ends, so what follows is done here."""

    def body(ready: Callable[[str | None], None]) -> int:
        start = launch.open_run(plan, draft, say=say)
        ready(start.finished)
        if start.finished:
            return 0
        state = runtime_of(context.variables).begin(start.folder.path, start.folder.node) if alone else State()
        code = launch.train(start, context.variables, by_hand=by_hand)
        return _conclude(context, plan.ending, state, _end(start.folder, code), Interrupts()) if alone else code

    return body


def attach(context: Context, folder: RunFolder) -> int:
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


def stay(why: str, services: Beside) -> NoReturn:
    """Until a signal: the machine is the person's, who comes in by other doors."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    click.echo(f"{why}: this container stays, without training, until it is stopped")
    _collect(services)  # of before the signals were held
    while (number := signal.sigwait(signals)) == signal.SIGCHLD:
        _collect(services)
    sys.exit(128 + number)


def _collect(services: Beside) -> None:
    """Children that have ended; where we are process 1, the orphans of others are ours (krallin/tini#8)."""
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            services.ended(pid)
