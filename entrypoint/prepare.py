"""From a command's words to a plan and its checks: how `train`, `up`, `plan` and `doctor` begin."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from entrypoint import doctor as doctors
from entrypoint import scripts, version
from entrypoint.checkpoint_size import checkpoint_bytes
from entrypoint.checks import check
from entrypoint.cluster import make_cluster
from entrypoint.ending import Ending, choose_ending
from entrypoint.environment import Environment, read_environment
from entrypoint.errors import MachineError, NodesError, Problem, SettingError
from entrypoint.examine import examine
from entrypoint.facts import Facts
from entrypoint.mount import parse_mount, refuse_unshared
from entrypoint.mount_volume import mount_volume
from entrypoint.names import resolve
from entrypoint.plan import Draft, Plan, all_checks
from entrypoint.preflight import preflight
from entrypoint.probe import probe
from entrypoint.probe_machine import DIRECTORY_SECONDS, answer_within
from entrypoint.providers import recognised
from entrypoint.readers import Variables
from entrypoint.reasons import Check, Setting, findings_of
from entrypoint.recipes import Recipe, choose_recipe, refuse_wrong_options, split_arguments
from entrypoint.request import Request, read_request
from entrypoint.stay import reason_to_stay
from entrypoint.values import clean
from entrypoint.volume import DEFAULT_VOLUME, choose_volume


@dataclass(frozen=True, slots=True)
class Context:
    """What `__main__` alone reads from the process: its environment and its working directory."""

    variables: Mapping[str, str]
    base: Path


def make_draft(context: Context, words: tuple[str, ...], *, may_wait: bool, is_up: bool = False) -> tuple[Plan, Draft]:
    """The plan, and what it was made from. `may_wait`: for names that do not resolve yet, and to mount the volume.

    `is_up`: for the container's own start.

    Raises:
        SettingError, MachineError, NodesError: there can be no plan.
    """
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
    mount(context, request, environment, volume, now=may_wait)
    look = partial(
        probe,
        volume,
        nccl_conf_file=context.variables.get("NCCL_CONF_FILE"),
    )
    facts = _look(look, environment, wait_seconds)
    draft = Draft(
        environment,
        facts,
        request,
        recipe,
        context.variables,
        context.base,
        in_image=version.BUILD.exists(),
        is_up=is_up,
    )
    made = draft.plan()
    if recipe is not None:
        refuse_wrong_options(recipe, made.cluster.world_size)
    return made, draft


def settings_so_far(context: Context) -> tuple[Setting, ...]:
    """The settings of a plan that waits for nobody; none where there can be no plan yet."""
    try:
        return make_draft(context, (), may_wait=False)[0].settings
    except Problem:
        return ()


def _completed(recipe: Recipe) -> Recipe:
    """The recipe with its interpreter, which the script's first line tells; it may lie on a volume that hangs."""
    try:
        return answer_within(DIRECTORY_SECONDS, lambda: scripts.complete(recipe))
    except TimeoutError:
        raise MachineError(
            f"{recipe.script} does not answer", fix="is the server of its file system gone? Mount it again"
        ) from None


def mount(context: Context, request: Request, environment: Environment, volume: Path, *, now: bool) -> None:
    """Mount what TRAIN_MOUNT names, or only refuse what several nodes cannot share."""
    if request.mount is None:
        return
    refuse_unshared(parse_mount(request.mount), environment.nodes or 1)
    if now:
        mount_volume(request.mount, volume, context.variables, say=say)


def _look(look: Callable[..., Facts], environment: Environment, wait_seconds: float) -> Facts:
    """The facts, with the route to the primary under the name that the environment gave it."""
    name = environment.primary_address
    if name is None or environment.nodes == 1:
        return look()
    try:
        address = resolve(name, wait_seconds=wait_seconds, say=say)
    except NodesError:
        if wait_seconds:
            raise
        return look()  # a plan is shown all the same; its network then rests on what else is known
    facts = look(targets=(address,))
    return replace(facts, routes=tuple((name, source) for _, source in facts.routes))


def volume_of(context: Context, request: Request) -> Path:
    """Where runs lie, without a plan."""
    path, _ = choose_volume(request.volume, context.variables)
    here = path == DEFAULT_VOLUME and not path.is_dir()
    return context.base / ("workspace" if here else path)


def first_look(context: Context) -> tuple[Path, str | None, Problem | None]:
    """For the container's own start: its volume, mounted; why it stays without training; and what is wrong already.

    What is wrong is raised later: services come first, so that somebody can come in and see.
    """
    volume = volume_of(context, Request())
    try:
        request, environment = read_request(context.variables), read_environment(context.variables)
        volume = context.base / choose_volume(request.volume, context.variables)[0]
        mount(context, request, environment, volume, now=True)
    except Problem as problem:
        return volume, None, problem
    return volume, reason_to_stay(environment.provider, context.variables), None


def ending_alone(context: Context) -> Ending:
    """What follows where there could be no plan: from what can be read still."""
    try:
        request = read_request(context.variables)
    except SettingError:
        request = Request()
    try:
        provider = read_environment(context.variables).provider
    except SettingError:
        provider = next(recognised(Variables.cleaned(context.variables, Path("/")))).name
    volume = probe(volume_of(context, request)).volume
    try:
        return choose_ending(request, provider, volume, context.variables, is_up=True)
    except SettingError:
        return choose_ending(Request(), provider, volume, context.variables, is_up=True)


def tried(context: Context, plan: Plan, facts: Facts) -> Plan:
    """The plan with what is found by trying, unless there is nothing to start or it is forbidden already."""
    if plan.recipe is None or any(finding.level == "stop" for finding in plan.findings):
        return plan
    return replace(plan, findings=plan.findings + findings_of(preflight(plan, facts, context.variables, say=say)))


def diagnose_alone(context: Context, problem: Problem) -> tuple[tuple[Check, ...], Facts]:
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


def diagnose(context: Context, made: Plan, draft: Draft) -> tuple[Check, ...]:
    """Every check of this node, also those that take seconds."""
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


def say(line: str) -> None:
    """A line beside the output, at once."""
    click.echo(line, err=True)
