"""What follows the end of training on this machine: exit, stay, or ask its cloud to stop it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from entrypoint.errors import SettingError
from entrypoint.facts import Volume
from entrypoint.reasons import Finding
from entrypoint.request import Request
from entrypoint.stay import PODS
from entrypoint.values import clean
from entrypoint.volume import in_memory

Action = Literal["exit", "stay", "stop", "terminate"]
_UNITS = {"s": 1, "m": 60, "h": 3600}
# File systems of a disk of one machine. Runpod's network volumes are none of these.
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay")


@dataclass(frozen=True, slots=True)
class Cloud:
    """Who stops this machine, and under which name it knows it. The key stays in the environment."""

    kind: Literal["runpod", "vast", "command"]
    machine: str

    @property
    def name(self) -> str:
        return {"runpod": "Runpod", "vast": "Vast.ai", "command": "TRAIN_STOP_COMMAND"}[self.kind]


@dataclass(frozen=True, slots=True)
class Ending:
    """What is done after success and after a failure. A stop that was asked for is followed by `otherwise` at most."""

    success: Action
    failure: Action
    otherwise: Action
    reason: str
    failure_seconds: int = 0  # from a failure to the request to stop
    cloud: Cloud | None = None
    findings: tuple[Finding, ...] = ()


def choose_ending(
    request: Request,
    provider: str,
    volume: Volume | None,
    variables: Mapping[str, str],
    *,
    is_up: bool,
    has_launcher: bool = True,
) -> Ending:
    """The ending; SettingError where a stop is wanted and nothing tells how.

    `volume`: where checkpoints are (None: not known). `is_up`: this is the container's own start; a command that
    somebody typed never stays. `has_launcher`: False for one process of many.
    """
    restarts = PODS.get(provider)
    otherwise: Action = "stay" if is_up and restarts else "exit"
    wish = request.on_exit
    if not has_launcher:
        return Ending("exit", "exit", "exit", "one process of many: who started it decides")
    if wish in ("stop", "terminate"):
        return _stopping(request, volume, variables, otherwise)
    if wish == "stay" and not is_up:
        return Ending("exit", "exit", "exit", "TRAIN_ON_EXIT=stay is for `up`, which the image runs by itself")
    if wish == "stay":
        return Ending("stay", "stay", "stay", "TRAIN_ON_EXIT")
    if wish == "exit":
        findings = (_restarted(restarts),) if is_up and restarts else ()
        return Ending("exit", "exit", "exit", "TRAIN_ON_EXIT", findings=findings)
    if otherwise == "stay":
        return Ending("stay", "stay", "stay", f"{restarts} starts a container again that has ended")
    return Ending("exit", "exit", "exit", "who started it sees the exit code")


def _restarted(platform: str) -> Finding:
    text = f"TRAIN_ON_EXIT=exit, and {platform} starts a container again that has ended: it costs until it is stopped"
    return Finding("warn", text, "TRAIN_ON_EXIT=stop, or stop it by hand")


def _stopping(request: Request, volume: Volume | None, variables: Mapping[str, str], otherwise: Action) -> Ending:
    wish = f"TRAIN_ON_EXIT={request.on_exit}"
    cloud = choose_cloud(request, variables)
    action, findings = _harmless(request, cloud, volume, variables, otherwise)
    word, _, delay = request.stop_on.partition(":")
    seconds = int(delay[:-1]) * _UNITS[delay[-1]] if delay else 0
    too = word in ("always", "failure") and action in ("stop", "terminate")
    return Ending(
        success=action,
        failure=action if too else otherwise,
        otherwise=otherwise,
        reason=f"{wish}, TRAIN_STOP_ON={request.stop_on}",
        failure_seconds=seconds if too else 0,
        cloud=cloud if action in ("stop", "terminate") else None,
        findings=findings,
    )


def choose_cloud(request: Request, variables: Mapping[str, str]) -> Cloud:
    """Who is asked; SettingError where nobody can be."""

    def told(name: str) -> str:
        return clean(variables.get(name, ""))

    if request.stop_command:
        if request.on_exit == "terminate":
            raise SettingError(
                "TRAIN_ON_EXIT=terminate, and TRAIN_STOP_COMMAND is set: what it deletes is not known here",
                fix="TRAIN_ON_EXIT=stop runs the command, whatever it does",
            )
        return Cloud("command", "this machine")
    pod, instance = told("RUNPOD_POD_ID"), told("CONTAINER_ID") or told("VAST_CONTAINERLABEL").removeprefix("C.")
    if pod and told("RUNPOD_API_KEY"):
        return Cloud("runpod", pod)
    if instance and told("CONTAINER_API_KEY"):
        return Cloud("vast", instance)
    missing = "RUNPOD_API_KEY" if pod else "CONTAINER_API_KEY" if told("VAST_CONTAINERLABEL") else None
    why = f"{missing} is not set" if missing else "nothing here tells how to stop this machine"
    raise SettingError(
        f"TRAIN_ON_EXIT={request.on_exit}, but {why}",
        fix="Runpod and Vast.ai set their own variables; elsewhere TRAIN_STOP_COMMAND says it, or TRAIN_ON_EXIT=exit",
    )


def _harmless(
    request: Request, cloud: Cloud, volume: Volume | None, variables: Mapping[str, str], otherwise: Action
) -> tuple[Action, tuple[Finding, ...]]:
    """What was asked for, or the next that deletes no checkpoint."""
    wish = request.on_exit or ""
    path = volume.path if volume else "the volume"
    mounted = request.mount is not None or (
        volume is not None and volume.mounted is True and not in_memory(volume.filesystem)
    )
    outlives = mounted
    if cloud.kind == "runpod" and request.mount is None:
        local = volume is None or volume.filesystem in _LOCAL
        outlives = mounted and not local and bool(clean(variables.get("RUNPOD_VOLUME_ID", "")))
    if wish == "terminate" and not outlives:
        action: Action = "stop"
        lost = f"{path} is not known to outlive this machine, and {cloud.name} deletes the rest"
    elif wish == "terminate":
        return "terminate", ()
    else:
        action, lost = "stop", ""
    if cloud.kind == "runpod" and not mounted:  # its pods lose the container's own disk when they are stopped
        action, lost = (
            otherwise,
            f"{path} is on the container's own disk, which {cloud.name} clears when it stops a pod",
        )
    if not lost:
        return action, ()
    text = f"TRAIN_ON_EXIT={wish} is not done: {lost}; at the end: {action}"
    return action, (Finding("warn", text, "put the volume on a disk that stays (on Runpod a network volume)"),)


def sentences(ending: Ending) -> list[tuple[str, str]]:
    """What will happen, and why: pairs as the plan shows them."""
    success = _sentence(ending.success, ending)
    failure = _sentence(ending.failure, ending)
    if ending.failure_seconds:
        failure += f" after {_duration(ending.failure_seconds)}, unless somebody keeps it"
    if success == failure:
        return [(success, ending.reason)]
    return [(f"after success: {success}", ending.reason), (f"after a failure: {failure}", ending.reason)]


def _sentence(action: Action, ending: Ending) -> str:
    if action == "exit":
        return "exit with the training's code"
    if action == "stay":
        return "stay, with the services, until it is stopped"
    assert ending.cloud is not None
    how = "run TRAIN_STOP_COMMAND" if ending.cloud.kind == "command" else f"ask {ending.cloud.name}"
    return f"{how} to {action} this machine"


def _duration(seconds: int) -> str:
    """
    >>> _duration(1800), _duration(90)
    ('30 min', '90 s')
    """
    return f"{seconds // 60} min" if seconds % 60 == 0 else f"{seconds} s"
