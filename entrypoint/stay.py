"""Whether a container without training stays: on a pod platform, or where a person has asked for a way in."""

from collections.abc import Mapping

from entrypoint.errors import SettingError
from entrypoint.jupyter import NAMES, read_secret
from entrypoint.keys import KEY_VARIABLES, is_off

# Row of `providers` → its name. They start a container that has ended again, at once and for ever, and bill for it.
PODS = {"runpod-pod": "Runpod", "runpod-cluster": "Runpod", "vast": "Vast.ai"}
DOORS = frozenset(KEY_VARIABLES + NAMES)


def reason_to_stay(provider: str, variables: Mapping[str, str]) -> str | None:
    """Why it stays; None: it says what it is and ends. `provider`: as `read_environment` names it."""
    if provider in PODS:
        return f"this is a pod of {PODS[provider]}"
    for name in KEY_VARIABLES:
        if not is_off(variables.get(name, "")):
            return f"{name} is set"
    try:
        secret = read_secret(variables)
    except SettingError:  # told where JupyterLab is left out
        return "a password is set, which nobody can type"
    return f"{secret.name} is set" if secret else None
