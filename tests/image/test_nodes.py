"""Two containers as two nodes of a cloud: eth0 is the slow way out, ens1 the fast network between the nodes.

Docker gives neither names nor speeds, and a container without rights cannot change them: the test does it from the
host, in each container's network, after each start. So the containers wait for their cables.
"""

import json
import os
import re
import shutil
import subprocess

import pytest
from containers import complaints, docker

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not all(shutil.which(program) for program in ("nsenter", "ip", "tc")),
    reason="changing a container's network from outside wants root, nsenter, ip and tc",
)
WAIT = "until grep -q up /sys/class/net/ens1/operstate 2>/dev/null; do sleep 0.1; done; exec roundhouse up"
ARGUMENTS = "--steps 1000000 --seq-length 32 --global-batch 2 --log-every 1 --save-every {save} --eval-every 1000000"


class Cluster:
    """Both nodes with one volume."""

    def __init__(self, engine, save_every, options=()):
        self.slow, self.fast, volume = engine.network(), engine.network(), engine.volume()
        self.nodes = [
            engine.start(
                *("bash", "-c", WAIT),
                options=(
                    *("--network", self.slow, "--network", f"name={self.fast},alias=node{rank}"),
                    *("-v", f"{volume}:/workspace", *options),
                ),
                variables={
                    **{"NUM_NODES": "2", "NODE_RANK": str(rank), "NUM_TRAINERS": "1", "PRIMARY_ADDR": "node0"},
                    **{"TRAIN_SCRIPT": "ddp", "TRAIN_ARGS": ARGUMENTS.format(save=save_every)},
                },
            )
            for rank in range(2)
        ]
        for node in self.nodes:
            self.wire(node)

    def wire(self, node):
        """Name and shape its interfaces: found by their addresses, for their order follows the networks' names."""
        found = json.loads(docker("inspect", "-f", "{{json .NetworkSettings.Networks}}", node.name).stdout)
        links = json.loads(self._inside(node, "ip", "-json", "-4", "address"))
        names = {address["local"]: link["ifname"] for link in links for address in link["addr_info"]}
        slow, fast = names[found[self.slow]["IPAddress"]], names[found[self.fast]["IPAddress"]]
        for command in (
            *(f"ip link set {fast} down", f"ip link set {fast} name ens1", "ip link set ens1 up"),
            f"tc qdisc add dev {slow} root tbf rate 20mbit burst 32kbit latency 400ms",
        ):
            self._inside(node, *command.split())

    def sent(self, node, name):
        return int(node.execute("cat", f"/sys/class/net/{name}/statistics/tx_bytes"))

    def _inside(self, node, *words):
        command = ["nsenter", "-t", str(node.pid), "-n", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_two_nodes_train_over_the_fast_network_save_on_a_stop_and_go_on(engine):
    cluster = Cluster(engine, save_every=1000000)
    first, second = cluster.nodes
    first.wait_until(lambda: first.step() > 4, "no step")
    slow = next(name for name in first.execute("ls", "/sys/class/net").split() if name.startswith("eth"))
    for node in cluster.nodes:
        assert cluster.sent(node, "ens1") > 10 * cluster.sent(node, slow)  # which the roll call has measured too
        assert complaints(node.logs()) == []
    settings = {s["name"]: s["value"] for s in json.loads(first.read("/workspace/runs/ddp/plan.json"))["settings"]}
    assert settings["GLOO_SOCKET_IFNAME"] == "ens1"
    docker("stop", "-t", 60, first.name, second.name)
    assert [node.state["ExitCode"] for node in cluster.nodes] == [143, 143], cluster.nodes
    (saved,) = re.findall(r"saved /workspace/runs/ddp/checkpoints/step-(\d+)", first.logs())
    for node in cluster.nodes:
        node.start()
        cluster.wire(node)
    first.wait_for(f"going on from /workspace/runs/ddp/checkpoints/step-{saved}")
    first.wait_until(lambda: first.step() > int(saved) + 2, "no step after the second start")


def test_a_node_that_crashed_comes_back_and_both_go_on_from_the_checkpoint(engine):
    cluster = Cluster(engine, save_every=2, options=("--restart", "on-failure:3"))
    first, second = cluster.nodes
    first.wait_for("checkpoints/step-2")
    os.kill(second.pid, 9)  # `docker kill` would start no policy
    second.wait_until(lambda: second.restarts == 1 and second.pid, "it did not come back")
    cluster.wire(second)
    first.wait_for("going on from /workspace/runs/ddp/checkpoints/step-")
    reached = first.step()
    first.wait_until(lambda: first.step() > reached + 3, "no step after the crash")
    assert first.restarts == 0
    assert "attempt-1" in first.execute("ls", "/workspace/runs/ddp/logs")
