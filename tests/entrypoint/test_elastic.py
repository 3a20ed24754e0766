"""The launcher's child, as far as it goes without torch."""

import socket

from entrypoint.elastic import _free_port


def test_a_port_that_was_taken_since_the_plan_gives_way_to_a_free_one():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert _free_port(port) != port
    assert _free_port(port) == port
