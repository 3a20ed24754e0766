"""Whether a container without training stays: on a pod platform, or where a person has asked for a way in."""

from collections.abc import Mapping

from entrypoint.keys import KEY_VARIABLES, is_off
from entrypoint.values import clean

# Row of `providers` → its name. They start a container that has ended again, at once and for ever, and bill for it.
PODS = {"runpod-pod": "Runpod", "runpod-cluster": "Runpod", "vast": "Vast.ai"}
_PASSWORDS = ("JUPYTER_PASSWORD", "JUPYTER_TOKEN", "JUPYTER_LAB_PASSWORD")
DOORS = frozenset(KEY_VARIABLES + _PASSWORDS)


def reason_to_stay(provider: str, variables: Mapping[str, str]) -> str | None:
    """Why it stays; None: it says what it is and ends. `provider`: as `read_environment` names it."""
    if provider in PODS:
        return f"this is a pod of {PODS[provider]}"
    disabled = clean(variables.get("JUPYTER_DISABLE", "")) == "1"
    for name in KEY_VARIABLES if disabled else KEY_VARIABLES + _PASSWORDS:
        if not is_off(variables.get(name, "")):
            return f"{name} is set"
    return None
