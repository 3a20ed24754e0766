"""Nodes with networks of their own on one machine: Linux namespaces, for `local --namespaces` and the cluster tests.

Every namespace is held by a process and has no name: the nodes', and one more for the bridges that join them. These
processes die with their maker, so nothing is left behind however it ends, nothing is seen on the machine itself, and
several clusters do not meet. It takes root, and iproute2 and util-linux (ip, tc, unshare, nsenter, setpriv).
"""

import contextlib
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from entrypoint.errors import MachineError

DIES_WITH_ITS_MAKER = ("setpriv", "--pdeathsig", "SIGKILL", "--")
_TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv")
_COMMAND_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Link:
    """A network that joins all nodes: the interface's name on each, and how fast it is (None: as fast as it goes)."""

    name: str
    subnet: str
    mbit: int | None = None
    mtu: int = 1500
    other_names: tuple[str, ...] = ()  # on nodes 1, 2, …, where they differ

    def name_on(self, node: int) -> str:
        return self.other_names[node - 1] if 0 < node <= len(self.other_names) else self.name


# As a cloud's cluster has them: the interface that the host name resolves to is the slow one.
LINKS = (Link("eth0", "10.64.0.0/24", mbit=20), Link("ens1", "10.65.0.0/24"))


class Namespaces:
    """The nodes' networks, from `with` to its end; the first link is the one that host names resolve to."""

    def __init__(self, nodes: int, links: Sequence[Link] = LINKS) -> None:
        self.nodes, self.links = nodes, tuple(links)
        self._offsets = dict.fromkeys(range(nodes), 2)  # of a node's addresses in each subnet
        self._stack = contextlib.ExitStack()
        self._holders: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Namespaces":
        _refuse_without_means()
        with self._stack as stack:
            self._bridges = self._hold("--net")
            for at in range(len(self.links)):
                self._between(f"ip link add br{at} type bridge && ip link set br{at} up")
            self._holders = [self._hold("--net", "--uts", "--mount", "--propagation=private") for _ in self._offsets]
            for node in self._offsets:
                self._furnish(node)
                for at, link in enumerate(self.links):
                    self._plug_in(node, at, link)
                self._give_addresses(node)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def command(self, node: int) -> tuple[str, ...]:
        """The words before a command that start it on a node, in a pid namespace of its own as in a container."""
        enter = ("nsenter", "--target", str(self._holders[node].pid), "--net", "--uts", "--mount", "--")
        # --kill-child: whoever kills unshare, or the maker of all this, kills every process of the node.
        own_pids = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", f"--wd={os.getcwd()}", "--")
        return (*enter, *own_pids)

    def address(self, node: int, link: int = 0) -> str:
        return str(ipaddress.ip_network(self.links[link].subnet)[node + self._offsets[node]])

    def cut(self, node: int) -> None:
        """From now on nothing arrives at this node or leaves it, and nobody is told: its interfaces stay up."""
        for at in range(len(self.links)):
            self._between(f"ip link set n{node}l{at} nomaster")

    def heal(self, node: int) -> None:
        for at in range(len(self.links)):
            self._between(f"ip link set n{node}l{at} master br{at} && ip link set n{node}l{at} up")

    def unplug(self, node: int) -> None:
        """Link down, as by a cable that is pulled: no carrier, and no FIN for anybody. `heal` plugs it in again."""
        for at in range(len(self.links)):
            self._between(f"ip link set n{node}l{at} down")

    def move(self, node: int) -> None:
        """Other addresses, as a replacement has them."""
        self._offsets[node] += 100
        self._give_addresses(node)

    def on(self, node: int, script: str) -> str:
        """Run a line of shell in a node's namespaces: its output."""
        return _run(("nsenter", "--target", str(self._holders[node].pid), "--net", "--uts", "--mount"), script)

    def _hold(self, *kinds: str) -> "subprocess.Popen[str]":
        holder = subprocess.Popen(
            [*DIES_WITH_ITS_MAKER, "unshare", *kinds, "sh", "-c", "echo; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(_end, holder)
        assert holder.stdout is not None
        if not holder.stdout.readline():  # the line comes from within
            raise MachineError(
                f"this machine does not let us make namespaces ({holder.communicate()[1].strip()})",
                fix="run as root with CAP_SYS_ADMIN and CAP_NET_ADMIN, or leave --namespaces out",
            )
        return holder

    def _between(self, script: str) -> None:
        _run(("nsenter", "--target", str(self._bridges.pid), "--net"), script)

    def _furnish(self, node: int) -> None:
        """A host name, and a hosts file that knows this node alone, as a container has them; its own /sys."""
        hosts = f"127.0.0.1 localhost\\n::1 localhost\\n{self.address(node)} node{node}\\n"
        self.on(node, f"ip link set lo up && hostname node{node} && mount -t sysfs sysfs /sys")
        # The file lies in a tmpfs that nothing but the bind mount holds.
        bind = f"printf '{hosts}' > /mnt/hosts && mount --bind /mnt/hosts /etc/hosts && umount -l /mnt"
        self.on(node, f"mount -t tmpfs tmpfs /mnt && {bind}")

    def _plug_in(self, node: int, at: int, link: Link) -> None:
        name, port = link.name_on(node), f"n{node}l{at}"
        peer = f"peer name {port} mtu {link.mtu} netns {self._bridges.pid}"
        self.on(node, f"ip link add {name} mtu {link.mtu} type veth {peer}")
        if link.mbit is not None:  # what a node sends is shaped on its side; so both directions are
            self.on(node, f"tc qdisc add dev {name} root tbf rate {link.mbit}mbit burst 32kbit latency 400ms")
        self._between(f"ip link set {port} master br{at} && ip link set {port} up")

    def _give_addresses(self, node: int) -> None:
        for at, link in enumerate(self.links):
            name, length = link.name_on(node), ipaddress.ip_network(link.subnet).prefixlen
            nodad = " nodad" if ":" in link.subnet else ""
            self.on(node, f"ip addr flush dev {name} && ip link set {name} up")
            self.on(node, f"ip addr add {self.address(node, at)}/{length} dev {name}{nodad}")


def _refuse_without_means() -> None:
    if os.geteuid() != 0:
        raise MachineError("namespaces take root, and this user is none", fix="sudo, or leave --namespaces out")
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise MachineError(
            f"namespaces take {', '.join(missing)}, which is not installed", fix="install iproute2 and util-linux"
        )


def _run(enter: tuple[str, ...], script: str) -> str:
    done = subprocess.run(
        [*enter, "sh", "-ec", script], capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS
    )
    if done.returncode:
        raise MachineError(
            f"`{script}` failed in a namespace: {done.stderr.strip()}", fix="leave --namespaces out; is the kernel old?"
        )
    return done.stdout


def _end(holder: "subprocess.Popen[str]") -> None:
    holder.kill()
    holder.communicate()
