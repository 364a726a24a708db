"""Ports that tests and benchmarks reserve for servers that they start later."""

import socket
import struct

import pytest

from bench.ports import reserve_port

IP_LOCAL_PORT_RANGE = 51
"""Of linux/in.h; Python has no name for it."""


def test_nothing_answers_at_a_reserved_port() -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reserve_port()))


def test_a_server_that_asks_for_it_by_its_number_gets_it_again_and_again() -> None:
    port = reserve_port()
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port)),
            socket.create_connection(("127.0.0.1", port)),
        ):
            pass


def test_whoever_asks_for_any_port_gets_another() -> None:
    port = reserve_port()
    with socket.socket() as other:
        try:
            # Only this one is left to choose.
            only = struct.pack("=HH", port, port)
            other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, only)
        except OSError:
            pytest.skip("before Linux 6.3 all sockets choose from the same range")
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", 0))
