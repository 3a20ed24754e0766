"""sshd for whoever holds a key that the container was given: its files, fresh at each start, and its service."""

import base64
import hashlib
import os
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from entrypoint import private_folder
from entrypoint.errors import MachineError, Problem
from entrypoint.keys import KEY_VARIABLES, is_off, read_keys
from entrypoint.service import Service
from entrypoint.values import clean, parse_port

_PORT = 22
_HOST_KEYS = ("ed25519", "ecdsa")  # the second for old libraries; to make one of RSA takes seconds
_CAPABILITIES = {"SETGID": 6, "SETUID": 7, "SYS_CHROOT": 18}  # sshd's own separation of privileges
_SEPARATION = Path("/run/sshd")  # compiled into Debian's sshd
# The address and port as seen from outside, where the platform tells them.
_OUTSIDE = (("RUNPOD_PUBLIC_IP", "RUNPOD_TCP_PORT_"), ("PUBLIC_IPADDR", "VAST_TCP_PORT_"))


def service(variables: Mapping[str, str], folder: Path, say: Callable[[str], None]) -> Service | None:
    """None: no key, or a line that says why there is no sshd. `folder`: private_folder's.

    A container without ssh can still train, so nothing that is wrong here ends it.
    """
    given = [name for name in KEY_VARIABLES if name in variables]
    wanted = [name for name in given if not is_off(variables[name])]
    if not wanted:
        if given:
            say(f"no ssh: {given[0]} is {clean(variables[given[0]]) or 'empty'}")
        return None
    keys = read_keys(variables)
    for finding in keys.refused:
        say(f"{finding.text}\n  fix: {finding.fix}")
    if not keys.lines:
        say(f"no ssh: {' and '.join(wanted)} holds no key that can be used")
        return None
    try:
        port = _free_port(variables)
        _refuse_powerless()
        program = _program(variables)
        host_keys = [_host_key(folder, kind) for kind in _HOST_KEYS]
        private_folder.write(folder / "authorized_keys", "".join(f"{line}\n" for line in keys.lines))
        private_folder.write(folder / "sshd_config", configuration(folder, port, host_keys))
        _SEPARATION.mkdir(mode=0o755, exist_ok=True)
    except Problem as problem:
        say(f"no ssh: {problem}")
        return None
    except OSError as error:
        say(f"no ssh: {error.filename}: {error.strerror}\n  fix: a read-only root wants --tmpfs /run too")
        return None
    return Service(
        "sshd",
        (program, "-D", "-e", "-f", str(folder / "sshd_config")),
        f"port {port}{_outside(variables, port)}, {_count(keys.lines)} of {' and '.join(wanted)}; "
        f"host key {_fingerprint(host_keys[0])}",
    )


def configuration(folder: Path, port: int, host_keys: list[Path]) -> str:
    """sshd_config. PAM is left out: it reads files that are not ours, and some modules want audit rights."""
    lines = (
        f"Port {port}",
        *(f"HostKey {path}" for path in host_keys),
        f"AuthorizedKeysFile {folder / 'authorized_keys'} .ssh/authorized_keys",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "UsePAM no",
        "PidFile none",
        "PrintMotd no",
        "X11Forwarding no",
        "ClientAliveInterval 60",  # proxies drop what is silent
        "Subsystem sftp internal-sftp",
    )
    return "\n".join(lines) + "\n"


def _free_port(variables: Mapping[str, str]) -> int:
    text = clean(variables.get("SSH_PORT", ""))
    port = parse_port("SSH_PORT", text) if text else _PORT
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise MachineError(
                f"port {port} cannot be had: {error.strerror}",
                fix="SSH_PORT names another; where the platform runs an sshd itself, nothing is missing",
            ) from None
    return port


def _refuse_powerless() -> None:
    user = os.geteuid()
    if user:
        raise MachineError(f"sshd wants to start as root, and this is user {user}", fix="leave out --user")
    status = Path("/proc/self/status").read_text()
    held = int(re.findall(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)[0], 16)
    if missing := [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]:
        raise MachineError(
            f"sshd wants the capabilities {', '.join(missing)}",
            fix=" ".join(("docker run", *(f"--cap-add {name}" for name in missing))),
        )


def _program(variables: Mapping[str, str]) -> str:
    path = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{variables.get('PATH', '')}")
    if path is None or shutil.which("ssh-keygen") is None:
        raise MachineError("sshd or ssh-keygen is not installed here", fix="apt-get install openssh-server")
    return path


def _host_key(folder: Path, kind: str) -> Path:
    """Made at the first start and kept with the container's own disk: a key in an image would be everybody's."""
    path = folder / f"ssh_host_{kind}_key"
    if not path.exists():
        made = folder / f"new_{kind}"
        made.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", str(made)]
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if answer.returncode:
            words = " ".join(answer.stderr.split())
            raise MachineError(f"no host key could be made in {folder}: {words}", fix="give that file system room")
        made.with_suffix(".pub").rename(path.with_suffix(".pub"))
        made.rename(path)
    return path


def _fingerprint(host_key: Path) -> str:
    """As ssh asks about it at the first connection."""
    kind, blob = host_key.with_suffix(".pub").read_text().split()[:2]
    digest = base64.b64encode(hashlib.sha256(base64.b64decode(blob)).digest()).decode().rstrip("=")
    return f"{kind.removeprefix('ssh-').upper()} SHA256:{digest}"


def _outside(variables: Mapping[str, str], port: int) -> str:
    for address, prefix in _OUTSIDE:
        if variables.get(address) and (outside := variables.get(f"{prefix}{port}")):
            return f" (ssh {pwd.getpwuid(os.geteuid()).pw_name}@{variables[address]} -p {outside})"
    return ""


def _count(lines: tuple[str, ...]) -> str:
    return f"{len(lines)} key{'s' if len(lines) > 1 else ''}"
