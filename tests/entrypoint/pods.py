"""A container without an engine: `up` as process 1 of its own processes and mounts, with the image's shell files."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import runs

NAMESPACE = ("unshare", "-mpf", "--mount-proc", "--kill-child")
SETUP = """
mount --bind "$0/run" /run
mount --bind "$0/bash.bashrc" /etc/bash.bashrc
mount --bind "$0/profile.d" /etc/profile.d
for own in /root/.bashrc /root/.profile /root/.bash_profile /root/.bash_login; do
  [ ! -e $own ] || mount --bind /dev/null $own
done
[ ! -e "$0/sshd" ] || mount --bind "$0/sshd" /usr/sbin/sshd
exec "$@"
"""


def missing() -> str | None:
    """Why there can be none here; None: there can."""
    if os.getuid() != 0 or subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0:
        return "no root with namespaces here"
    if not Path("/usr/sbin/sshd").exists() or not shutil.which("ssh"):
        return "no openssh-server and openssh-client here"
    if subprocess.run([sys.executable, "-c", "import supervisor"], capture_output=True).returncode != 0:
        return "no supervisor here"
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Pod:
    """Its own disk (`run`, /etc), a volume, a person's key; `up` may be started in it more than once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.volume, self.port = folder, folder / "volume", free_port()
        for name in ("run", "profile.d", "volume"):
            (folder / name).mkdir()
        shutil.copy("/etc/bash.bashrc", folder / "bash.bashrc")
        for line in re.findall(r"^sed -i .*/etc/bash\.bashrc$", self._image("product.sh"), re.MULTILINE):
            subprocess.run(["bash", "-c", line.replace("/etc/bash.bashrc", '"$0"'), folder / "bash.bashrc"], check=True)
        (folder / "profile.d/roundhouse.sh").write_text(self._image("profile.sh"))
        (folder / "shell.sh").write_text(self._image("shell.sh"))
        self.key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", self.key], check=True)
        self.public = self.key.with_suffix(".pub").read_text().strip()
        self.process: subprocess.Popen | None = None
        self.log = folder / "log"

    def _image(self, name: str) -> str:
        """A file of the image, whose own folder is this one here."""
        return (runs.ROOT / "image" / name).read_text().replace("/opt/roundhouse", str(self.folder))

    @contextlib.contextmanager
    def up(self, **variables: str):
        """Running until the block ends; what it says is in `log`."""
        given = runs.environment(self.volume, SSH_PORT=str(self.port), HOME="/root", PUBLIC_KEY=self.public)
        command = [*NAMESPACE, "sh", "-ec", SETUP, self.folder, sys.executable, "-m", "entrypoint", "up"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, cwd=runs.ROOT, env=given | variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            yield self
        finally:
            if self.process.poll() is None:
                self.signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            finally:
                self.process.kill()  # with --kill-child the whole container

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while text not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < until, f"no {text!r} in {self.said()}"
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """As an engine does it: to process 1 alone."""
        with contextlib.suppress(IndexError, psutil.NoSuchProcess):
            os.kill(psutil.Process(self.process.pid).children()[0].pid, number)

    def inside(self, *words: str) -> str:
        """What our command says when it is started in the container by its engine."""
        first = psutil.Process(self.process.pid).children()[0].pid
        command = ["nsenter", "-t", str(first), "-m", "-p", sys.executable, "-m", "entrypoint", *words]
        environment = runs.environment(self.volume, PYTHONPATH=str(runs.ROOT))
        return subprocess.run(command, cwd=runs.ROOT, env=environment, capture_output=True, text=True).stdout

    def processes(self, word: str) -> list[psutil.Process]:
        """Those of this container with this word in their command."""
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile, or is a zombie
                if word in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def ssh_words(self, *options: str, user: str = "root") -> list[str]:
        known = self.folder / "known_hosts"
        settings = (f"UserKnownHostsFile={known}", "StrictHostKeyChecking=accept-new", "IdentitiesOnly=yes")
        words = [word for setting in (*settings, "LogLevel=ERROR", "BatchMode=yes") for word in ("-o", setting)]
        return ["-F", "none", "-i", str(self.key), *words, *options, f"{user}@127.0.0.1"]

    def ssh(self, command: str, *, check=True, seconds=60) -> subprocess.CompletedProcess:
        words = ["ssh", "-p", str(self.port), *self.ssh_words(), command]
        return subprocess.run(words, capture_output=True, check=check, timeout=seconds, stdin=subprocess.DEVNULL)
