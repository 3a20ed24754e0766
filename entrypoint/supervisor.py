"""supervisord: its configuration, its start, and what it says of its programs. No network port: a unix socket, 0600."""

import contextlib
import http.client
import importlib.util
import os
import shlex
import socket
import subprocess
import sys
import xmlrpc.client
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint import private_folder

STARTS = 4  # in a row, with 1, 2 and 3 s between them
_STEADY_SECONDS = 10  # one that lived that long has started; it is started again without being counted
_STOP_SECONDS = 5
_LOG_BYTES = 1 << 20  # and as much again in NAME.log.1
_SERVE = Path(__file__).with_name("serve.py")
_WORDS = {"RUNNING": "running", "STARTING": "starting", "BACKOFF": "starting", "FATAL": "gave up"}


@dataclass(frozen=True, slots=True)
class State:
    """One program: `word` is running, starting, gave up or stopped; `pid` 0: no process now."""

    name: str
    word: str
    pid: int


def is_installed() -> bool:
    return importlib.util.find_spec("supervisor") is not None


def log_of(folder: Path, name: str) -> Path:
    return folder / "logs" / f"{name}.log"


def file_of(folder: Path, name: str) -> Path:
    """What `serve.py` reads of a program: its command, folder and environment."""
    return folder / "services" / f"{name}.json"


def configuration(folder: Path, names: Sequence[str], *, root: bool) -> str:
    """supervisord.conf for programs that `serve.py` becomes.

    >>> print(configuration(Path("/run/x"), ["sshd"], root=False).partition("command=")[0])
    [unix_http_server]
    file=/run/x/supervisor.sock
    chmod=0600
    <BLANKLINE>
    [supervisorctl]
    serverurl=unix:///run/x/supervisor.sock
    <BLANKLINE>
    [rpcinterface:supervisor]
    supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
    <BLANKLINE>
    [supervisord]
    nodaemon=true
    silent=true
    logfile=/run/x/supervisord.log
    logfile_maxbytes=1048576
    logfile_backups=1
    pidfile=/run/x/supervisord.pid
    childlogdir=/run/x/logs
    minfds=256
    <BLANKLINE>
    [program:sshd]
    <BLANKLINE>
    """
    daemon: dict[str, object] = {
        "nodaemon": "true",
        "silent": "true",  # its own lines are in its log
        "logfile": folder / "supervisord.log",
        "logfile_maxbytes": _LOG_BYTES,
        "logfile_backups": 1,
        "pidfile": folder / "supervisord.pid",
        "childlogdir": folder / "logs",
        "minfds": 256,  # it would not start below
    }
    if root:
        daemon["user"] = "root"  # it warns where this is left open
    sections: dict[str, dict[str, object]] = {
        "unix_http_server": {"file": _socket(folder), "chmod": "0600"},
        "supervisorctl": {"serverurl": f"unix://{_socket(folder)}"},
        "rpcinterface:supervisor": {
            "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
        },
        "supervisord": daemon,
        **{f"program:{name}": _program(folder, name) for name in names},
    }
    return "\n".join(
        "".join((f"[{title}]\n", *(f"{key}={value}\n" for key, value in section.items())))
        for title, section in sections.items()
    )


def _program(folder: Path, name: str) -> dict[str, object]:
    return {
        "command": shlex.join(_serve(file_of(folder, name))).replace("%", "%%"),
        "autorestart": "true",
        "startsecs": _STEADY_SECONDS,
        "startretries": STARTS - 1,
        "stopwaitsecs": _STOP_SECONDS,
        "stopasgroup": "true",
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": log_of(folder, name),
        "stdout_logfile_maxbytes": _LOG_BYTES,
        "stdout_logfile_backups": 1,
    }


def write(folder: Path, names: Sequence[str]) -> None:
    """What `start` wants; the programs' own files are written by whoever knows them."""
    private_folder.write(folder / "supervisord.conf", configuration(folder, names, root=os.geteuid() == 0))
    command = [sys.executable, "-P", "-m", "supervisor.supervisord", "-c", str(folder / "supervisord.conf")]
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8"}  # the services' variables are in their own files
    document = {"command": command, "folder": "/", "environment": environment}
    private_folder.write_json(folder / "supervisord.json", document)


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """supervisord in this process's group; it ends with this process."""
    with contextlib.suppress(OSError):
        _socket(folder).unlink()  # of one that was killed
    with open(folder / "supervisord.err", "wb") as errors:
        return subprocess.Popen(
            _serve(folder / "supervisord.json"), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
        )


def _serve(file: Path) -> list[str]:
    return [sys.executable, "-I", "-S", str(_SERVE), str(file)]


def states(folder: Path) -> tuple[State, ...] | None:
    """Of all programs; None: it does not answer."""
    server = xmlrpc.client.ServerProxy("http://supervisor", transport=_Transport(_socket(folder)))
    try:
        told: Any = server.supervisor.getAllProcessInfo()
    except (OSError, http.client.HTTPException, xmlrpc.client.Error):
        return None
    return tuple(State(one["name"], _WORDS.get(one["statename"], "stopped"), one["pid"]) for one in told)


def _socket(folder: Path) -> Path:
    return folder / "supervisor.sock"


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("supervisor", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class _Transport(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: object) -> http.client.HTTPConnection:
        return _Connection(self._path)
