"""The primary's name → an address: waits for names that a cluster's DNS does not know yet."""

import ipaddress
import socket
import time
from collections.abc import Callable

from entrypoint.errors import NodesError

_TRY_SECONDS = 2.0
_SAY_SECONDS = 10.0


def resolve(
    host: str,
    *,
    wait_seconds: float,
    say: Callable[[str], None],
    lookup: Callable[[str], str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """An address of `host`, which may be one already; NodesError when it has none after `wait_seconds`.

    A worker often boots before the primary's name is in the DNS (kubeflow/pytorch-operator#125): it says so every
    10 s and tries again, instead of dying and being restarted in a loop.
    """
    began = clock()
    said = began - _SAY_SECONDS  # the first line comes at once
    while True:
        try:
            return (lookup or _lookup)(host)
        except OSError as error:
            waited = clock() - began
            if waited >= wait_seconds:
                raise NodesError(
                    f"the primary's name {host!r} has no address after {waited:.0f} s ({error.strerror or error})",
                    fix="start node 0, or correct its name (TRAIN_PRIMARY); TRAIN_WAIT is how long to wait",
                ) from None
            if clock() - said >= _SAY_SECONDS:
                said = clock()
                say(f"waiting for the primary's name {host!r}: {error.strerror or error} ({waited:.0f} s so far)")
            sleep(_TRY_SECONDS)


def _lookup(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long never gets as far as the DNS
        raise OSError(f"not a host name: {error}") from None
    addresses = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    # IPv4 as NCCL prefers it, whatever order the name server chose for this node; 127.0.1.1 leads nowhere.
    return str(min(addresses, key=lambda address: (address.is_loopback, address.version)))
