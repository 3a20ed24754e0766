"""A Slurm of its own, for the tests: a head node and compute nodes in namespaces, all of it below one folder.

It is Debian's slurm-wlm with munge. Nothing of the machine's own Slurm, if it has one, is read, asked or started, and
everything ends with the `with`. The last node of the namespaces is the head: slurmctld runs there, and what a person
types. Node names are on the slow network, as a site's names are on its management network.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import psutil

from entrypoint.namespaces import DIES_WITH_ITS_MAKER, Namespaces

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY", "BOOT_FAIL")
_SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
PATIENCE = 300  # seconds: a busy machine must not fail a test

# A harsh site: a task that ends with an error ends its step, and what is asked to end has 3 s for it. A node that does
# not answer for 6 s is down; one that comes back may be used at once.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={head}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=6
KillOnBadExit=1
KillWait=3
NodeName={nodes} CPUs=2 RealMemory=2000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why there can be no Slurm here; None: its programs are installed."""
    lacking = [program for program in PROGRAMS if shutil.which(program, path=_SBIN) is None]
    return f"no {', '.join(lacking)}: apt install slurm-wlm munge" if lacking else None


class Slurm:
    """A cluster of `nodes` compute nodes, up from `with` to its end."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder, self.nodes = folder, nodes
        self._daemons: dict[str, subprocess.Popen] = {}
        self._stack = contextlib.ExitStack()
        self.environment = {"PATH": _SBIN, "HOME": str(folder), "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> "Slurm":
        with self._stack as stack:
            self._networks = stack.enter_context(Namespaces(self.nodes + 1))
            stack.callback(self._end)
            self._write_configuration()
            self._start_munge()
            self._start("slurmctld", self.nodes, "slurmctld", "-D")
            for node in range(self.nodes):
                self.start_node(node)
            self.wait_for_nodes()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ---- its nodes ----

    def start_node(self, node: int) -> None:
        self._start(f"node{node}", node, "slurmd", "-D")

    def kill_node(self, node: int) -> None:
        """kill -9 of everything on it, as when a machine is taken away."""
        daemon = self._daemons.pop(f"node{node}")
        daemon.kill()  # and the kernel ends its pid namespace
        daemon.wait()

    def wait_for_nodes(self) -> None:
        def idle():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            assert not ended, f"{ended} ended\n{self.log()}"
            return self._states() == ["idle"] * self.nodes

        wait_for(idle, lambda: f"nodes are {self._states()}\n{self.log()}")

    def _states(self) -> list[str]:
        done = self.command("sinfo", "--noheader", "--Node", "--format=%T", check=False)
        return done.stdout.split()

    def processes(self, node: int, words: str) -> list[psutil.Process]:
        """What runs on a node and has this in its command line, the oldest first."""
        found = []
        for process in psutil.Process(self._daemons[f"node{node}"].pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if words in " ".join(process.cmdline()):
                    found.append(process)
        return sorted(found, key=psutil.Process.create_time)

    # ---- what a person does on the head node ----

    def command(self, *words: object, check=True, **variables: str):
        """A command on the head node. `variables`: what the person has in the shell beside PATH and HOME."""
        done = subprocess.run(
            [*self._networks.command(self.nodes), *map(str, words)],
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    def submit(self, script: Path, *options: str, **variables: str) -> "Job":
        done = self.command("sbatch", "--parsable", f"--chdir={script.parent}", *options, script, **variables)
        return Job(self, int(done.stdout.split(";")[0]), script.parent)

    def log(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))

    # ---- its daemons ----

    def _write_configuration(self) -> None:
        (self.folder / "state").mkdir()
        names = [f"node{node}" for node in range(self.nodes + 1)]
        hosts = "".join(f"{self._networks.address(node)} {name}\n" for node, name in enumerate(names))
        for node, name in enumerate(names):
            others = hosts.replace(f"{self._networks.address(node)} {name}\n", "")
            self._networks.on(node, f"printf '%s' '{others}' >> /etc/hosts")
        text = CONFIGURATION.format(folder=self.folder, head=names[-1], nodes=f"node[0-{self.nodes - 1}]")
        Path(self.environment["SLURM_CONF"]).write_text(text)
        # Which version it is Slurm would look up in /sys, where the nodes have none; it is not used.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start_munge(self) -> None:
        key, socket = self.folder / "munge.key", self.folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {name: self.folder / f"munge.{name}" for name in ("pid", "log", "seed")}
        options = [f"--{name}-file={path}" for name, path in files.items()]
        self._daemon("munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}", *options)
        wait_for(socket.exists, self.log)

    def _start(self, name: str, node: int, *words: str) -> None:
        # The shell is process 1 of the node: it collects what loses its parent, as an init does.
        self._daemon(name, *self._networks.command(node), "sh", "-c", f"{' '.join(words)}; :")

    def _daemon(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.out.log", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                [*DIES_WITH_ITS_MAKER, *words],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _end(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()
        for daemon in self._daemons.values():
            daemon.wait()


class Job:
    """One that was submitted; it keeps its number when it is queued again."""

    def __init__(self, slurm: Slurm, number: int, folder: Path) -> None:
        self._slurm, self.number, self._folder = slurm, number, folder

    def __repr__(self) -> str:  # what pytest shows of a failed assertion
        return f"{self.show()}\n{self.text()}\n{self._slurm.log()}"

    def show(self) -> dict[str, str]:
        """What `scontrol show job` tells of it."""
        text = self._slurm.command("scontrol", "--oneliner", "show", "job", self.number).stdout
        return dict(re.findall(r"(\w+)=(\S*)", text))

    @property
    def state(self) -> str:
        return self.show()["JobState"]

    @property
    def restarts(self) -> int:
        return int(self.show()["Restarts"])

    def text(self) -> str:
        """All that it wrote, in all of its starts."""
        return "".join(path.read_text() for path in self._folder.glob(f"*-{self.number}.out"))

    def update(self, **fields: object) -> None:
        self._slurm.command(
            "scontrol", "update", f"JobId={self.number}", *(f"{name}={value}" for name, value in fields.items())
        )

    def signal(self, name: str) -> None:
        """To the batch script alone, as Slurm does it before the time limit."""
        self._slurm.command("scancel", "--batch", f"--signal={name}", self.number)

    def cancel(self) -> None:
        self._slurm.command("scancel", self.number)

    def wait_for(self, condition, what: str) -> None:
        wait_for(condition, lambda: f"{what}\n{self!r}")

    def wait(self) -> tuple[str, int]:
        """Its state and exit code when it has ended for good."""
        self.wait_for(lambda: self.state in ENDED, "it did not end")
        shown = self.show()
        return shown["JobState"], int(shown["ExitCode"].split(":")[0])

    def come_near_the_limit(self, notice: int) -> None:
        """A limit that is nearer than the `notice` (seconds) of --signal: Slurm looks at the clock every 30 s."""
        hours, minutes, seconds = map(int, self.show()["RunTime"].split(":"))
        self.update(TimeLimit=(hours * 3600 + minutes * 60 + seconds + notice) // 60)

    def start_again_now(self, **fields: object) -> None:
        """When it has been queued again: Slurm would hold it for two minutes."""
        self.wait_for(lambda: self.state == "PENDING" and self.restarts, "it was not queued again")
        self._slurm.wait_for_nodes()
        time.sleep(3)  # within a second or so of the end, Slurm takes the new start for the one that it has revoked
        self.update(StartTime="now", **fields)


def wait_for(condition, what, seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what()
        time.sleep(0.2)
