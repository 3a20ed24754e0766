"""Environment, Facts, Request and Recipe → Plan: the same input gives the same plan, on any machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from entrypoint.caches import cache_settings
from entrypoint.check_limits import cores, threads
from entrypoint.checks import check
from entrypoint.cluster import Cluster, make_cluster
from entrypoint.devices import visible_gpus
from entrypoint.ending import Ending, choose_ending
from entrypoint.environment import Environment
from entrypoint.errors import MachineError
from entrypoint.facts import Facts
from entrypoint.launchers import Launcher, choose_launcher, process_command
from entrypoint.measured import Measurements
from entrypoint.mount import check_mount
from entrypoint.network import Network, choose_network
from entrypoint.reasons import Check, Finding, Setting, findings_of
from entrypoint.recipes import Recipe
from entrypoint.recorder import recorder_settings
from entrypoint.request import Request
from entrypoint.volume import DEFAULT_VOLUME, choose_volume


@dataclass(frozen=True, slots=True)
class Settled:
    """What the roll call adds to a plan; None: not settled yet."""

    node_rank: int | None = None  # given by arrival
    master_port: int | None = None  # torch's, for this attempt
    measured: Measurements | None = None
    settings: tuple[Setting, ...] = ()  # that only all nodes together can know


@dataclass(frozen=True, slots=True)
class RollCall:
    """Where and how the nodes meet before each attempt."""

    port: int
    secret: str
    wait_seconds: int


@dataclass(frozen=True, slots=True)
class Directories:
    """Where the run lives, on the shared volume."""

    volume: Path
    run: Path | None  # None: no recipe, so no run
    checkpoints: Path | None
    logs: Path | None
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done, with the reasons. A person prints it, a test compares it, a bug report carries it."""

    cluster: Cluster
    network: Network
    settings: tuple[Setting, ...]
    recipe: Recipe | None
    command: tuple[str, ...]
    launcher: Launcher | None  # None: nothing is launched
    directories: Directories
    session: str
    setup: str | None  # a command, before the first attempt
    ending: Ending
    findings: tuple[Finding, ...]
    grace_seconds: int
    restarts: int
    again: bool
    roll_call: RollCall | None  # None: there is nobody to meet, or somebody else started the processes
    process_rank: int | None  # set: this is one process of many that somebody else started, and nothing is launched


@dataclass(frozen=True, slots=True)
class Draft:
    """All that a plan is made of, to make it again when the roll call has told more."""

    environment: Environment
    facts: Facts
    request: Request
    recipe: Recipe | None
    variables: Mapping[str, str] = field(repr=False)
    base: Path
    in_image: bool = False
    is_up: bool = False  # the container's own start, whose end is the container's

    def plan(self, settled: Settled = Settled()) -> Plan:
        """See `make_plan`."""
        return make_plan(
            self.environment,
            self.facts,
            self.request,
            self.recipe,
            variables=self.variables,
            base=self.base,
            in_image=self.in_image,
            is_up=self.is_up,
            settled=settled,
        )


def make_plan(
    environment: Environment,
    facts: Facts,
    request: Request,
    recipe: Recipe | None,
    *,
    variables: Mapping[str, str],
    base: Path,
    in_image: bool = False,
    is_up: bool = False,
    settled: Settled = Settled(),
) -> Plan:
    """The plan; SettingError or MachineError where there can be none.

    `variables` are looked at for settings of libraries that came from outside and win (NCCL_*, GLOO_*,
    OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES, DS_ACCELERATOR, HF_HOME …) and for the platforms' names of the volume; `base`
    is the folder that relative paths count from. `settled` is what the roll call told, in a plan that is made again for
    an attempt.
    """
    gpus = len(visible_gpus(variables.get("CUDA_VISIBLE_DEVICES"), facts.gpus or ()))
    told = make_cluster(environment, gpus, facts.listening_ports)
    cluster = _settle(told, settled)
    network = choose_network(
        cluster,
        facts,
        variables,
        gpus=gpus,
        hint=environment.interface_hint,
        insisted=cluster.sources.get("interface_hint") == "TRAIN_INTERFACE",
        must_be_known=environment.rank is None,
        measured=settled.measured,
    )
    is_process = environment.rank is not None
    ending = choose_ending(
        request, environment.provider, facts.volume, variables, is_up=is_up, has_launcher=not is_process
    )
    directories = _directories(request, facts, recipe, cluster, base, variables, in_image=in_image)
    settings = network.settings + _threads(cluster, facts, variables) + _accelerator(facts, variables, gpus=gpus)
    settings += cache_settings(directories.volume, facts, variables, in_image=in_image)
    launcher: Launcher | None = None
    if is_process:
        settings += _process_settings(environment, cluster, network)
    elif recipe is not None:
        address = cluster.primary_address or network.address or "127.0.0.1"
        launcher = choose_launcher(request.launcher, recipe, cluster, address, gpus=gpus)
        settings += launcher.settings + recorder_settings(variables, facts.nccl_conf) + settled.settings
    return Plan(
        cluster=cluster,
        network=network,
        settings=settings,
        recipe=recipe,
        command=launcher.command if launcher else process_command(recipe) if recipe else (),
        launcher=launcher,
        directories=directories,
        session="foreground",
        setup=None if is_process or recipe is None else request.setup,
        ending=ending,
        findings=network.findings
        + _said_otherwise(environment, cluster)
        + (ending.findings if recipe is not None else ())
        + _setup_of_nobody(request, environment)
        + _to_be_made(request, facts)
        + findings_of(all_checks(told, facts, request, variables, directories.volume, is_process=is_process)),
        grace_seconds=request.grace_seconds,
        restarts=request.restarts,
        again=request.again,
        roll_call=None if is_process or recipe is None else _roll_call(told, request),
        process_rank=environment.rank,
    )


def all_checks(
    cluster: Cluster,
    facts: Facts,
    request: Request,
    variables: Mapping[str, str],
    volume: Path,
    *,
    is_process: bool,
) -> tuple[Check, ...]:
    """Every answer that facts give; also what `doctor` shows."""
    mounting = check_mount(request.mount, facts, volume)
    to_mount = mounting is not None and facts.volume.mount_point != str(volume)
    meeting = None if is_process else _roll_call(cluster, request)
    found = check(
        cluster,
        facts,
        gpus=len(visible_gpus(variables.get("CUDA_VISIBLE_DEVICES"), facts.gpus or ())),
        chosen="CUDA_VISIBLE_DEVICES" in variables,
        named=request.volume is not None,
        is_process=is_process,
        meeting_port=meeting.port if meeting else None,
    )
    if to_mount:  # what lies below the mount does not matter
        found = tuple(each for each in found if each.subject != "volume")
    return (*([mounting] if mounting else []), *found)


def _settle(cluster: Cluster, settled: Settled) -> Cluster:
    rank = settled.node_rank if cluster.node_rank is None else cluster.node_rank
    return replace(cluster, node_rank=rank, primary_port=settled.master_port or cluster.primary_port)


def _roll_call(cluster: Cluster, request: Request) -> RollCall | None:
    if cluster.nodes == 1:
        return None
    # beside torch's port, which changes where it is taken while this one must be known to all
    port = cluster.primary_port + 1 if cluster.primary_port < 2**16 - 1 else cluster.primary_port - 1
    secret = (
        "TRAIN_TOKEN" if request.token else "a file on the shared volume, or the run's name where there can be none"
    )
    return RollCall(port, secret, request.wait_seconds)


def _directories(
    request: Request,
    facts: Facts,
    recipe: Recipe | None,
    cluster: Cluster,
    base: Path,
    variables: Mapping[str, str],
    *,
    in_image: bool,
) -> Directories:
    may_be_here = cluster.nodes == 1 and not in_image
    volume, reason = _volume(request, facts, base, variables, may_be_here=may_be_here)
    if recipe is None:
        return Directories(volume, None, None, None, reason)
    run = volume / "runs" / (request.run or recipe.name)
    return Directories(volume, run, run / "checkpoints", run / "logs", reason)


def _volume(
    request: Request, facts: Facts, base: Path, variables: Mapping[str, str], *, may_be_here: bool
) -> tuple[Path, str]:
    """The shared volume; a checkout on one node may do without, the image and several nodes never."""
    path, source = choose_volume(request.volume, variables)
    if request.volume is not None or facts.volume.exists or request.mount is not None:
        return base / path, source
    if may_be_here and facts.volume.exists is False and path == DEFAULT_VOLUME:
        return base / "workspace", f"a checkout on one node, and {DEFAULT_VOLUME} does not exist here"
    why = "does not exist here" if facts.volume.exists is False else "does not answer (is its server gone?)"
    raise MachineError(
        f"the shared volume {path}{'' if path == DEFAULT_VOLUME else f' ({source})'} {why}",
        fix="mount it, or name another folder that all nodes share with TRAIN_VOLUME",
    )


def _said_otherwise(environment: Environment, cluster: Cluster) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            "warn",
            f"{said} is not followed: {field.replace('_', ' ')} is {getattr(cluster, field)} "
            f"({cluster.sources.get(field, environment.provider)})",
            f"unset {said.partition('=')[0]}",
        )
        for said, field in environment.ignored.items()
    )


def _setup_of_nobody(request: Request, environment: Environment) -> tuple[Finding, ...]:
    """One process of many cannot know which of its node comes first."""
    if request.setup is None or environment.rank is None:
        return ()
    text = "TRAIN_SETUP is not run: somebody else has started this process, and there is no launcher"
    return (Finding("warn", text, "run it where the processes are started"),)


def _to_be_made(request: Request, facts: Facts) -> tuple[Finding, ...]:
    """A volume that is not mounted yet, or misspelt, would become a folder on this machine's own disk."""
    if request.volume is None or facts.volume.exists is not False or request.mount is not None:
        return ()
    text = f"TRAIN_VOLUME={request.volume} does not exist here and will be made"
    return (Finding("warn", text, "mount the volume there first, or correct TRAIN_VOLUME"),)


def _threads(cluster: Cluster, facts: Facts, variables: Mapping[str, str]) -> tuple[Setting, ...]:
    """OpenMP threads a process: the cores that this container may use, shared out (torchrun alone would say 1)."""
    if variables.get("OMP_NUM_THREADS"):
        return ()
    reason = f"{cores(facts):g} cores / {cluster.processes_per_node} processes"
    return (Setting("OMP_NUM_THREADS", str(threads(cluster, facts)), reason),)


def _accelerator(facts: Facts, variables: Mapping[str, str], *, gpus: int) -> tuple[Setting, ...]:
    """Without being told, DeepSpeed guesses by importing torch, and warns where it finds no GPU."""
    if gpus or facts.gpus is None or variables.get("DS_ACCELERATOR"):
        return ()
    return (Setting("DS_ACCELERATOR", "cpu", "no visible GPU; DeepSpeed would guess, and warn"),)


def _process_settings(environment: Environment, cluster: Cluster, network: Network) -> tuple[Setting, ...]:
    """The variables that training code reads, where an MPI or a Slurm spells them otherwise."""
    reason = f"this process as {cluster.provider} numbers it"
    primary = cluster.primary_address or network.address
    values = {
        "RANK": environment.rank,
        "LOCAL_RANK": environment.local_rank,
        "WORLD_SIZE": cluster.world_size,
        "LOCAL_WORLD_SIZE": environment.processes_per_node,
        "MASTER_ADDR": environment.primary_address and primary,  # told to none: they meet in a way of their own
        "MASTER_PORT": environment.primary_address and cluster.primary_port,
    }
    return tuple(Setting(name, str(value), reason) for name, value in values.items() if value is not None)
