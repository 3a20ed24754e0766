"""The launcher's child, as far as it goes without torch."""

import socket

import pytest

from entrypoint.elastic import with_free_port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_port_that_was_taken_since_the_plan_gives_way_to_a_free_one(host):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        other_host, _, other_port = with_free_port(f"{host}:{port}").rpartition(":")
        assert other_host == host
        assert int(other_port) != port
    assert with_free_port(f"{host}:{port}") == f"{host}:{port}"
