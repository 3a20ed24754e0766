"""What can happen to a node: each function does it to a running trial, and tells when."""

import signal
import time


def killed(trial):
    """kill -9 of everything on a node, as when a machine is taken away; the same rank comes back."""
    return _lost(trial, 1)


def primary_lost(trial):
    return _lost(trial, 0)


def moved(trial):
    """The node that comes back is another machine with another address."""
    return _lost(trial, 1, lambda: trial.networks.move(1))


def _lost(trial, node, meanwhile=lambda: None):
    at = time.time()
    trial.nodes[node].kill()
    meanwhile()
    trial.nodes[node].start()
    return at


def unplugged(trial):
    """Link down: no packet tells anybody. It comes back when the others have noticed."""
    at = time.time()
    trial.networks.unplug(1)
    _heal_when_noticed(trial)
    return at


def partition(trial):
    """Half of the nodes do not reach the other half, though every link is up."""
    at = time.time()
    count = len(trial.nodes.nodes)
    for node in range(count // 2, count):
        trial.networks.cut(node)  # each alone: what is behind a switch that died is not together either
    _heal_when_noticed(trial)
    return at


def _heal_when_noticed(trial):
    trial.wait_for_line("was lost: ", nodes=[0])
    for node in range(1, len(trial.nodes.nodes)):
        trial.networks.heal(node)


def stopped(trial):
    """SIGSTOP of one training process: a hang that no connection tells."""
    at = time.time()
    trial.worker(1).send_signal(signal.SIGSTOP)
    return at


FAULTS = {function.__name__: function for function in (killed, primary_lost, moved, unplugged, partition, stopped)}
CLOSES_CONNECTIONS = ("killed", "primary_lost", "moved")  # noticed at once; the others by 15 s of silence, or by a hang
