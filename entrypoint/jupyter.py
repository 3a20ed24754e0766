"""JupyterLab and TensorBoard: who is let in, and how they are started. Pure; `jupyter_files.py` writes what they read.

One secret opens both: TensorBoard listens on loopback only, and JupyterLab leads to it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from entrypoint.errors import SettingError
from entrypoint.keys import is_off
from entrypoint.service import Service
from entrypoint.values import clean, quoted

# A person's own before what a platform makes up for each machine.
NAMES = ("JUPYTER_PASSWORD", "JUPYTER_LAB_PASSWORD", "JUPYTER_TOKEN")
PORT, TENSORBOARD_PORT = 8888, 6006
CONFIG = "config/jupyter_server_config.json"
LAB = Path(__file__).with_name("lab")  # pages and pictures of ours
# Its question about news, and its look for a newer release; news_url=None does not stop the question.
PAGE_CONFIG = "config/labconfig/page_config.json"
PAGE = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
_NO = ("", "0", "no", "false", "null")
_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")
_RELOAD_SECONDS = 15  # TensorBoard looks that often at every run on the shared volume


@dataclass(frozen=True, slots=True)
class Secret:
    """What lets a person in, and the variable that it came from."""

    name: str
    value: str = field(repr=False)


def read_secret(variables: Mapping[str, str]) -> Secret | None:
    """The first that is given; None: there is no JupyterLab. Empty and `null` (an unset field of a form) are none."""
    if clean(variables.get("JUPYTER_DISABLE", "")).lower() not in _NO:
        return None
    given = (Secret(name, variables.get(name, "").strip()) for name in NAMES)  # the login form strips what is typed
    return next((secret for secret in given if not is_off(secret.value)), None)


def refuse_untypable(secret: Secret) -> None:
    """Nobody could be let in."""
    if not secret.value.isprintable():
        raise SettingError(
            f"{secret.name} has a line break or another character that a login form does not take",
            fix=f"set {secret.name} to one line",
        )


def origins(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Addresses in the browser that are ours although the server sees another `Host`: those of a proxy.

    Runpod's is known for each pod; other pods have the same domain, so no pattern may take them all.
    JUPYTER_ALLOW_ORIGIN names a person's own.
    """
    pod = clean(variables.get("RUNPOD_POD_ID", "")).lower()
    known = (f"https://{pod}-{PORT}.proxy.runpod.net",) if re.fullmatch("[a-z0-9-]+", pod) else ()
    own = clean(variables.get("JUPYTER_ALLOW_ORIGIN", "")).replace(",", " ").split()
    return known + tuple(map(_origin, own))


def _origin(text: str) -> str:
    origin = text.lower().removesuffix("/")
    if not _ORIGIN.fullmatch(origin):
        raise SettingError(
            f"{quoted('JUPYTER_ALLOW_ORIGIN', text)} is not the address of one proxy",
            fix="name it as the browser shows it: https://notebooks.example.org; * would let any page run code here",
        )
    return origin


def services(
    secret: Secret, volume: Path, folder: Path, *, python: str, home: str | None = None, ports: tuple[int, int]
) -> tuple[Service, Service]:
    """JupyterLab, then TensorBoard. `folder` has the configuration, and takes what they write; `home` is only read."""
    private = {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    if home:  # kernels that `ipykernel install --user` made in another shell
        private["JUPYTER_PATH"] = f"{home}/.local/share/jupyter"
    port, tensorboard_port = ports
    # -P: the working directory is the volume, where a random.py of the user's may lie.
    jupyter = Service(
        "jupyter",
        (python, "-P", "-m", "jupyterlab", f"--config={folder / CONFIG}"),
        f"port {port} of every address, with the value of {secret.name}",
        volume,
        private,
    )
    tensorboard = Service(
        "tensorboard",
        (
            *(python, "-P", "-m", "tensorboard.main", "--logdir", str(volume / "runs")),
            *("--host", "127.0.0.1", "--port", str(tensorboard_port), "--reload_interval", str(_RELOAD_SECONDS)),
        ),
        f"127.0.0.1:{tensorboard_port}, and through JupyterLab as /tensorboard/",
        volume,
    )
    return jupyter, tensorboard


def configuration(
    secret: Secret, origins: tuple[str, ...], volume: Path, opening: str | None, *, ipv6: bool, ports: tuple[int, int]
) -> dict[str, Any]:
    """What JupyterLab reads at its start. `opening`: the notebook that it shows first, from the volume."""
    port, tensorboard_port = ports
    root = str(volume)
    return {
        "ServerApp": {
            "ip": "*" if ipv6 else "0.0.0.0",  # of "*" it warns at each start that nothing is encrypted
            "port": port,
            "port_retries": 0,  # nothing leads to the next free one
            "root_dir": root,
            "preferred_dir": root,
            "allow_root": True,
            "allow_remote_access": True,
            "allow_origin_pat": "|".join(map(re.escape, origins)),
            "trust_xheaders": True,  # behind a proxy with TLS the cookie is for TLS only
            "open_browser": False,
            "quit_button": False,
            "terminado_settings": {"shell_command": ["/bin/bash", "--login"]},
            "extra_template_paths": [str(LAB)],
            "jinja_template_vars": {"secret_name": secret.name},
        },
        # The clouds' consoles open /lab?token=…; the login form takes a token as well.
        "IdentityProvider": {"token": secret.value},
        "PasswordIdentityProvider": {"hashed_password": "", "allow_password_change": False},
        "KernelManager": {"transport_encryption": "auto"},  # other containers may share this network
        # A trash would be a folder on the volume that nobody empties.
        "FileContentsManager": {"delete_to_trash": False},
        "LabApp": {
            "default_url": f"/lab/tree/{opening}" if opening else "/lab",
            "extension_manager": "readonly",
        },
        "ServerProxy": {
            "servers": {
                "tensorboard": {
                    "command": [],
                    "port": tensorboard_port,
                    "launcher_entry": {"title": "TensorBoard", "icon_path": str(LAB / "tensorboard.svg")},
                }
            }
        },
    }
