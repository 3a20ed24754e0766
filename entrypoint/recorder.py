"""Settings that make torch note its collectives, so that a hang can be explained. Pure."""

from collections.abc import Mapping, Sequence

from entrypoint.facts import FileSetting
from entrypoint.reasons import Setting

_REASON = "each rank's last collectives, for when it hangs"
# The names of before torch 2.9 (TORCH_NCCL_TRACE_BUFFER_SIZE) are left out: each process would log a deprecation.
_SETTINGS = (
    Setting("TORCH_FR_BUFFER_SIZE", "2000", _REASON),  # entries; torch's own choice for NCCL, gloo's is 0
    Setting("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", _REASON),
)


def recorder_settings(own: Mapping[str, str], conf: Sequence[FileSetting]) -> tuple[Setting, ...]:
    """The flight recorder on; a person's own choice, under its older name too, stands.

    NCCL_DEBUG of one of NCCL's files is said again: the keeper of the first process would hide it by its own.
    """
    words = {line.name: line for line in reversed(conf)}
    debug = () if own.get("NCCL_DEBUG") or not (line := words.get("NCCL_DEBUG")) else (line,)
    kept = tuple(Setting(line.name, line.value, f"as {line.path} says") for line in debug)
    if own.get("TORCH_NCCL_TRACE_BUFFER_SIZE"):
        return kept
    return kept + tuple(setting for setting in _SETTINGS if not own.get(setting.name))
