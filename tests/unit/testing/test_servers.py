"""Private servers start, come back after a kill with what was committed, and leave nothing."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from tests.processes import is_alive
from ulak.testing import servers
from ulak.testing.keeper import segments_of
from ulak.testing.servers import NOT_KEPT, Pooler, Postgres, Redis, ServerFailed, ServerMissing

# A program that starts both, says where, and waits for its end.
OWNER = """
import json, sys
from ulak.testing.servers import Pooler, Postgres
with Postgres() as postgres, Pooler(postgres) as pooler:
    facts = [[str(s.directory), s.port] for s in (postgres, pooler)]
    print(json.dumps({"url": postgres.url(), "servers": facts}), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def own() -> Iterator[Postgres]:
    """A server that these tests may kill, unlike the one that all tests share."""
    with Postgres() as server:
        yield server


def processes_of(directory: Path) -> list[str]:
    """The command lines that name the directory, its own keeper among them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(directory) in command:
            found.append(command)
    return found


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Tell whether something comes true that other processes are about to do."""
    give_up = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def answers(url: str) -> bool:
    with psycopg.connect(url) as db:
        return db.execute("SELECT 1").fetchone() == (1,)


def answering(server: servers.Server) -> list[int]:
    """The port of a server, if it answers there."""
    if isinstance(server, Redis):
        return [server.port] if redis.Redis.from_url(server.url()).ping() else []
    return [server.port] if answers(server.url()) else []


def backends(db: psycopg.Connection) -> list[int]:
    return [pid for (pid,) in db.execute("SELECT pid FROM pg_stat_activity").fetchall()]


def setting(url: str, name: str) -> str:
    with psycopg.connect(url) as db:
        return db.execute("SELECT current_setting(%s)", [name]).fetchone()[0]


# --- one server ---------------------------------------------------------------------


def test_a_server_answers_directly_and_through_the_pooler(
    postgres_url: str, pooled_url: str
) -> None:
    assert answers(postgres_url)
    assert answers(pooled_url)
    assert postgres_url != pooled_url


def test_a_server_does_not_run_as_root(own: Postgres) -> None:
    with psycopg.connect(own.url()) as db:
        (owner,) = {Path(f"/proc/{pid}").stat().st_uid for pid in backends(db)}
    assert owner == own.directory.stat().st_uid != 0


def test_the_pooler_gives_out_a_connection_for_a_transaction_and_not_for_a_session(
    pooled_url: str,
) -> None:
    with (
        psycopg.connect(pooled_url, autocommit=True) as one,
        psycopg.connect(pooled_url, autocommit=True) as two,
    ):
        pids = [db.execute("SELECT pg_backend_pid()").fetchone() for db in (one, two, one)]
    assert len(set(pids)) == 1


def test_what_was_committed_is_there_after_a_kill_and_what_was_not_is_not(own: Postgres) -> None:
    with psycopg.connect(own.url(), autocommit=True) as db:
        db.execute("CREATE TABLE kept (n int)")
        db.execute("INSERT INTO kept VALUES (1)")
    port = own.port
    open_transaction = psycopg.connect(own.url())
    open_transaction.execute("INSERT INTO kept VALUES (2)")
    own.kill()
    with pytest.raises(psycopg.OperationalError):
        open_transaction.execute("SELECT 1")
    own.start()
    assert own.port == port
    with psycopg.connect(own.url()) as db:
        assert db.execute("SELECT n FROM kept").fetchall() == [(1,)]


def test_a_kill_leaves_no_process_even_when_one_is_at_work(own: Postgres) -> None:
    busy = psycopg.connect(own.url(), autocommit=True)
    busy.pgconn.send_query(b"SELECT sum(n) FROM generate_series(1, 1e12) n")
    with psycopg.connect(own.url()) as db:
        pids = backends(db)
    assert len(pids) > 3
    own.kill()
    assert [pid for pid in pids if is_alive(pid)] == []
    busy.close()
    own.start()
    assert answers(own.url())


def test_a_stop_is_a_shutdown_in_good_order(own: Postgres) -> None:
    own.stop()
    assert "database system is shut down" in own.log.splitlines()[-1]
    own.start()
    assert answers(own.url())


def test_the_pooler_finds_the_server_again_after_a_kill_of_either(own: Postgres) -> None:
    with Pooler(own) as pooler:
        assert answers(pooler.url())
        own.kill()
        own.start()
        assert eventually(lambda: _answers_again(pooler.url()))
        pooler.kill()
        with pytest.raises(psycopg.OperationalError):
            answers(pooler.url())
        pooler.start()
        assert answers(pooler.url())


def _answers_again(url: str) -> bool:
    try:
        return answers(url)
    except psycopg.OperationalError:
        return False


def test_a_durable_server_waits_for_the_disk() -> None:
    with Postgres(durable=True, settings={"shared_buffers": "16MB"}) as server:
        assert setting(server.url(), "fsync") == "on"
        assert setting(server.url(), "synchronous_commit") == "on"
        assert setting(server.url(), "full_page_writes") == "on"
        assert setting(server.url(), "shared_buffers") == "16MB"


# --- a Redis --------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "kept"), [({}, b"1"), (NOT_KEPT, None)], ids=str)
def test_a_redis_has_after_a_kill_what_it_appends(
    settings: dict[str, str], kept: bytes | None
) -> None:
    with Redis(settings=settings) as server:
        port, owner = server.port, Path(f"/proc/{server.pid}").stat().st_uid
        assert owner == server.directory.stat().st_uid != 0
        client = redis.Redis.from_url(server.url())
        client.set("n", 1)
        server.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.start()
        assert (server.port, client.get("n")) == (port, kept)
        server.stop()
        server.start()
        assert client.get("n") == kept
        directory = server.directory
    assert not directory.exists()


def test_a_redis_takes_settings_as_its_file_writes_them() -> None:
    users = {"user": "default on nopass ~* +@all -config", "maxmemory": "64mb"}
    with Redis(settings=users) as server:
        client = redis.Redis.from_url(server.url())
        assert client.info("memory")["maxmemory"] == 64 * 2**20
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.config_get("maxmemory")


def test_each_test_has_a_database_of_redis_of_its_own(redis_url: str) -> None:
    assert redis.Redis.from_url(redis_url).dbsize() == 0
    assert not redis_url.endswith("/0")


# --- starts that fail -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["postgres", "pgbouncer", "redis"])
def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(
    kind: str, own: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as squatter:
        squatter.bind((servers.HOST, 0))
        squatter.listen()
        taken = squatter.getsockname()[1]
        free = servers._free_port
        offers = iter([taken, free()])
        monkeypatch.setattr(servers, "_free_port", lambda: next(offers))
        made = {"postgres": Postgres, "pgbouncer": lambda: Pooler(own), "redis": Redis}[kind]
        with made() as server:
            assert server.port != taken
            assert server.port in answering(server)


def test_a_start_that_fails_shows_the_log_and_leaves_nothing() -> None:
    server = Postgres(settings={"shared_buffers": "a lot"})
    with pytest.raises(ServerFailed, match=r'invalid value for parameter "shared_buffers"'), server:
        pass
    assert not server.directory.exists()
    assert processes_of(server.directory) == []


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ServerMissing, match="pgbadger is not on PATH"):
        servers.find_program("pgbadger")


# --- nothing is left -------------------------------------------------------------------


@pytest.mark.parametrize("way", ["returns", "raises"])
def test_a_closed_server_leaves_no_process_and_no_directory(way: str, own: Postgres) -> None:
    pooler = Pooler(own)
    try:
        with pooler:
            directory = pooler.directory
            assert len(processes_of(directory)) == 2  # the server and its keeper
            if way == "raises":
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert not directory.exists()
    assert processes_of(directory) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_servers_do_not_outlive_a_program_that_is_killed(number: signal.Signals) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    said = json.loads(program.stdout.readline())
    directories = [Path(directory) for directory, _ in said["servers"]]
    busy = psycopg.connect(said["url"], autocommit=True)
    busy.pgconn.send_query(b"SELECT sum(n) FROM generate_series(1, 1e12) n")
    with psycopg.connect(said["url"]) as db:
        pids = backends(db)
    assert all(processes_of(directory) for directory in directories)

    program.send_signal(number)
    program.communicate()

    assert eventually(lambda: not any(directory.exists() for directory in directories))
    assert [pid for pid in pids if is_alive(pid)] == []
    assert eventually(lambda: not any(processes_of(directory) for directory in directories))
    busy.close()


@pytest.mark.parametrize("first", ["close", "stop", "kill"])
def test_a_server_leaves_no_shared_memory(first: str) -> None:
    with Postgres() as server:
        pid = server._pid
        assert len(segments_of(pid)) == 1
        assert setting(server.url(), "dynamic_shared_memory_type") == "mmap"
        getattr(server, first)()
        assert segments_of(pid) == []


def test_a_server_does_not_outlive_its_keeper() -> None:
    with Pooler(Postgres()) as pooler:
        directory = pooler.directory
        os.kill(pooler._keeper.pid, signal.SIGKILL)
        assert eventually(lambda: not is_alive(pooler._pid))
        with pytest.raises(ServerFailed, match="keeper of pgbouncer has died"):
            pooler.stop()
    assert not directory.exists()


def test_a_frozen_server_stands_still_with_every_process_and_goes_on(own: Postgres) -> None:
    with psycopg.connect(own.url(), autocommit=True) as db:
        with own.frozen():
            states = {pid: servers._stat(pid) for pid in (own.pid, *servers._children(own.pid))}
            assert len(states) > 5, "the postmaster, its helpers and a session"
            assert {found and found[0] for found in states.values()} == {"T"}
        assert db.execute("SELECT 1").fetchone() == (1,)
        with psycopg.connect(own.url()) as another:
            assert another.execute("SELECT 1").fetchone() == (1,)
