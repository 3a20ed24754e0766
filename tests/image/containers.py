"""Containers for the tests, through the `docker` command: whatever a test makes is removed, however it ends."""

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

IMAGE = os.environ.get("ROUNDHOUSE_IMAGE", "roundhouse:cpu")
_SOCKET = Path("/run/roundhouse-docker.sock")  # where image/engine.sh puts one
ENVIRONMENT = {**os.environ} | (
    {"DOCKER_HOST": f"unix://{_SOCKET}"} if "DOCKER_HOST" not in os.environ and _SOCKET.is_socket() else {}
)
_COMPLAINT = re.compile(
    r"\b(WARNING|WARN|ERROR|CRITICAL|CRIT|FATAL)\b|Warning:|Traceback|^(\[n\d+r\d+\] )?\[[WEF]\d{4} ", re.MULTILINE
)

_NO_NAME = "The hostname of the client socket cannot be retrieved"  # torch's store, where no DNS answers


def missing() -> str | None:
    """Why no container can be tested here; None: the image is there."""
    if shutil.which("docker") is None:
        return "no docker command"
    try:
        docker("version")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return "no container engine answers"
    if docker("image", "inspect", IMAGE, check=False).returncode != 0:
        return f"no image {IMAGE}: `make image` builds it"
    return None


def variant() -> str:
    """Of the image: cpu or cuda."""
    label = '{{index .Config.Labels "roundhouse.variant"}}'
    return docker("image", "inspect", "--format", label, IMAGE).stdout.strip()


def docker(*words: object, check=True, timeout=300, **options) -> subprocess.CompletedProcess:
    options = {"capture_output": True, "text": True, "env": ENVIRONMENT, "stdin": subprocess.DEVNULL} | options
    if "input" in options:
        del options["stdin"]
    answer = subprocess.run(["docker", *map(str, words)], timeout=timeout, **options)
    if check and answer.returncode != 0:
        raise subprocess.CalledProcessError(answer.returncode, answer.args, answer.stdout, answer.stderr)
    return answer


def complaints(text: str) -> list[str]:
    """Lines that a normal run may not have: a person would have to look into each."""
    return [line for line in text.splitlines() if _COMPLAINT.search(line) and _NO_NAME not in line]


class Result:
    """How a container in the foreground ended, and all that it said."""

    def __init__(self, answer: subprocess.CompletedProcess) -> None:
        self.code, self.output, self.errors = answer.returncode, answer.stdout, answer.stderr

    def __repr__(self) -> str:  # what pytest shows of a failed assertion
        return f"exit code {self.code}\n{self.output}\n{self.errors}"


class Container:
    """One that runs in the background, or has ended."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{self.name}: {self.state}\n{self.logs()}"

    @property
    def state(self) -> dict:
        return json.loads(docker("inspect", "-f", "{{json .State}}", self.name).stdout)

    @property
    def pid(self) -> int:
        """Of its process 1, as the host numbers it."""
        return self.state["Pid"]

    @property
    def restarts(self) -> int:
        return int(docker("inspect", "-f", "{{.RestartCount}}", self.name).stdout)

    def logs(self) -> str:
        return docker("logs", self.name, stderr=subprocess.STDOUT, capture_output=False, stdout=subprocess.PIPE).stdout

    def step(self) -> int:
        """The newest that rank 0 of a recipe has told here; 0: none yet."""
        return max(map(int, re.findall(r"^\[n0r0\] step +(\d+)/", self.logs(), re.MULTILINE)), default=0)

    def start(self) -> None:
        docker("start", self.name)

    def stop(self, seconds: int) -> None:
        docker("stop", "-t", seconds, self.name, timeout=seconds + 30)

    def wait(self, seconds: int = 600) -> int:
        return int(docker("wait", self.name, timeout=seconds).stdout)

    def execute(self, *words: object, options=(), check=True) -> str:
        return docker("exec", *options, self.name, *words, check=check).stdout

    def listening(self) -> set[int]:
        """Ports that can be reached from outside."""
        sockets = (line.split()[4] for line in self.execute("ss", "-Hltun").splitlines())
        return {int(at.rpartition(":")[2]) for at in sockets if not at.startswith(("127.", "[::1]", "[::ffff:127."))}

    def read(self, path: str) -> str | None:
        """A file of the container, also when it has ended; None: not there."""
        answer = docker("cp", f"{self.name}:{path}", "-", check=False, text=False)
        if answer.returncode != 0:
            return None
        with tarfile.open(fileobj=io.BytesIO(answer.stdout)) as archive:
            return archive.extractfile(archive.next()).read().decode()

    def files(self, path: str) -> dict[str, tuple[int, int, int]]:
        """Names under a folder with size, time of change and checksum."""
        answer = docker("cp", f"{self.name}:{path}", "-", text=False)
        with tarfile.open(fileobj=io.BytesIO(answer.stdout)) as archive:
            return {m.name: (m.size, m.mtime, m.chksum) for m in archive if m.isfile()}

    def wait_for(self, text: str, seconds: float = 600) -> None:
        self.wait_until(lambda: text in self.logs(), f"it never said {text!r}", seconds)

    def wait_until(self, condition, what: str, seconds: float = 600) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert self.state["Running"], f"{what}: {self!r}"
            assert time.monotonic() < until, f"{what}: {self!r}"
            time.sleep(0.3)


class Engine:
    """Makes containers, volumes and networks, and removes them all."""

    def __init__(self) -> None:
        self._mark = f"roundhouse-test-{uuid4().hex[:12]}"
        self._count = 0

    def run(self, *words: object, options=(), variables: Mapping[str, str] | None = None, timeout=600) -> Result:
        """`docker run --rm`: in the foreground, to its end."""
        made = (*self._options(variables), "--rm", *options, IMAGE, *words)
        return Result(docker("run", *made, check=False, timeout=timeout))

    def start(self, *words: object, options=(), variables: Mapping[str, str] | None = None) -> Container:
        """`docker run -d`."""
        name = self._name()
        docker("run", *self._options(variables), "-d", "--name", name, *options, IMAGE, *words)
        return Container(name)

    def terminal(self, *words: object, options=()) -> tuple[Container, list[str]]:
        """A container to be, and the command that runs it on a terminal."""
        name = self._name()
        return Container(name), ["run", *self._options(None), "-it", "--name", name, *options, IMAGE, *map(str, words)]

    def volume(self, **files: str) -> str:
        """A volume with these files: `own_py="…"` becomes own.py."""
        name = self._name()
        docker("volume", "create", "--label", self._mark, name)
        if files:
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for key, text in files.items():
                    about = tarfile.TarInfo(key.replace("_", "."))
                    about.size = len(text.encode())
                    archive.addfile(about, io.BytesIO(text.encode()))
            holder = self._name()  # never started
            docker("create", *self._options(None), "--name", holder, "-v", f"{name}:/workspace", IMAGE)
            docker("cp", "-", f"{holder}:/workspace", text=False, input=packed.getvalue())
            docker("rm", holder)
        return name

    def network(self) -> str:
        """One that leads nowhere else. Its name decides the order of interfaces in a container."""
        name = self._name()
        docker("network", "create", "--internal", "--label", self._mark, name)
        return name

    def clear(self) -> None:
        for kind, words in {
            "container": ("rm", "-f", "-v"),
            "network": ("network", "rm"),
            "volume": ("volume", "rm", "-f"),
        }.items():
            listed = ("ps", "-aq") if kind == "container" else (kind, "ls", "-q")
            if found := docker(*listed, "--filter", f"label={self._mark}").stdout.split():
                docker(*words, *found)

    def _name(self) -> str:
        self._count += 1
        return f"{self._mark}-{self._count}"

    def _options(self, variables: Mapping[str, str] | None) -> list[str]:
        given = [word for name, value in (variables or {}).items() for word in ("-e", f"{name}={value}")]
        return ["--label", self._mark, *given]
