"""Both ends of a connection give up the other when it has vanished (E-83)."""

import os
import socket
from collections.abc import Iterator

import psycopg
import pytest

from ulak.clock import ManualClock
from ulak.store.postgres import timeouts
from ulak.store.postgres.connections import Connections
from ulak.store.postgres.timeouts import TimedConnection
from ulak.testing.servers import ROLE, Postgres

OPTIONS = {
    socket.SO_KEEPALIVE: 1,
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 2,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 11_000,
}
SETTINGS = "SELECT current_setting(name) FROM unnest(%s::text[]) AS name"


@pytest.fixture
def opened() -> Iterator[list[TimedConnection]]:
    opened: list[TimedConnection] = []
    yield opened
    for connection in opened:
        connection.close()


def both_kinds(conninfo: str, *, prepare: bool = True) -> list[TimedConnection]:
    """Open a connection of the store, and one that is lent to a program."""
    connections = Connections(conninfo, clock=ManualClock(), prepare=prepare)
    return [connections.connect(), connections.connect_plainly()]


def options_of(connection: psycopg.Connection) -> dict[int, int]:
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as ours:
        return {
            option: ours.getsockopt(
                socket.SOL_SOCKET if option == socket.SO_KEEPALIVE else socket.IPPROTO_TCP, option
            )
            for option in OPTIONS
        }


def settings_of(connection: psycopg.Connection) -> dict[str, str]:
    rows = connection.execute(SETTINGS, [list(timeouts.SERVER)]).fetchall()
    return dict(zip(timeouts.SERVER, [row[0] for row in rows], strict=True))


@pytest.mark.shows("E-83")
def test_both_ends_look_after_the_connection(url: str, opened: list[TimedConnection]) -> None:
    opened += both_kinds(url)
    for connection in opened:
        assert options_of(connection) == OPTIONS
        assert settings_of(connection) == {
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": "11000",
        }


@pytest.mark.shows("E-83")
def test_what_the_url_says_goes_before(url: str, opened: list[TimedConnection]) -> None:
    opened += both_kinds(f"{url}?keepalives_idle=77")
    for connection in opened:
        assert options_of(connection) == OPTIONS | {socket.TCP_KEEPIDLE: 77}


def test_a_unix_socket_needs_none_of_it(
    postgres_server: Postgres, opened: list[TimedConnection]
) -> None:
    where = f"host={postgres_server.directory} port={postgres_server.port} user={ROLE}"
    opened += both_kinds(f"{where} dbname=postgres")
    for connection in opened:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.shows("E-55")
def test_behind_a_pooler_no_setting_is_left_in_a_session(
    url: str, opened: list[TimedConnection]
) -> None:
    opened += both_kinds(url, prepare=False)
    for connection in opened:
        assert settings_of(connection)["tcp_user_timeout"] == "0"
