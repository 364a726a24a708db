"""A PostgreSQL, a pgbouncer and a Redis of one's own, for tests that may kill them.

    with Postgres() as postgres, Pooler(postgres) as pooler:
        psycopg.connect(postgres.url())          # a database of its own server
        psycopg.connect(pooler.url())            # the same through a pool of transactions
        postgres.kill()                          # every process of it, as a power cut would
        postgres.start()                         # on the same data, at the same port
        with postgres.frozen(): ...              # it stands still, and its kernel does not

    with Redis() as redis:
        redis.url()                              # redis://127.0.0.1:.../0

A server lives in a temporary directory and listens at a free port of 127.0.0.1. The program that
started it may itself be killed: neither the server nor its directory outlives it (`keeper`). It
needs the programs of Debian's packages `postgresql`, `pgbouncer` and `redis-server`, each for its
own kind, and no Python package.
"""

from __future__ import annotations

import json
import os
import pwd
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ulak.testing import keeper

HOST = "127.0.0.1"
ROLE = "postgres"
"""The role that connects, with every right and without a password."""

# Below the ports that Linux hands to outgoing connections, one of which could otherwise take the
# port of a server while it is down.
PORTS = range(15_000, 32_000)
MOST_PORTS_TRIED = 5
# Guesses: far above what a start takes (0.05 s) or a recovery after a kill (0.2 s), far below the
# timeout of a test.
START_WITHIN_S = 60.0
STOP_WITHIN_S = 30.0
LOOK_EVERY_S = 0.005

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
"""What is committed survives a power cut: for benchmarks, whose figures would lie otherwise."""
HASTY = {
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "max_wal_size": "128MB",
}
"""For tests. What is committed survives a SIGKILL of every process, since the kernel holds what
was written; only a power cut of the machine could lose it, and that ends the test as well."""

EVERY_SECOND = {"appendfsync": "everysec"}
"""For `Redis`: a power cut costs what was written since the last flush, about a second."""
NOT_KEPT = {"appendonly": "no"}
"""For `Redis`: nothing is written to the disk."""
EVICTING = {"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru"}
"""For `Redis`: when the memory is full, keys are removed that nobody has asked for lately."""

# So a hasty server may as well live in memory, where others who write to the disk do not slow it
# down: a new database takes 10 ms there, on a busy disk 20 to 130.
MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a directory that nobody else may enter
ROOM = 2_000_000_000

REDIS_DATABASES = 1024
"""So many databases a `Redis` has, by their numbers from 0: tests may have one each."""


class ServerMissing(LookupError):
    """A program of the server is not on this machine."""


class ServerFailed(RuntimeError):
    """A server did not start; what it wrote to its log is in the message."""


class Server:
    """One server in a directory of its own, between `start` and `close` as often as one likes.

    Subclasses say how it is started and when it answers. Threads may share one.
    """

    name = "server"
    stop_signal = signal.SIGTERM
    place: Path | None = None
    """In which directory to make its own; None for the usual one."""
    prefix: tuple[str, ...] = ()
    """What its keeper's command line begins with, to put both somewhere else."""

    def __init__(self) -> None:
        self.port = 0
        """Where it listens; chosen by the first start, and kept."""
        self._user = None if os.geteuid() else _unprivileged_user()
        self._turn = threading.RLock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._directory = Path()
        self._pid: int | None = None

    # --- what a server is ---------------------------------------------------------

    def _prepare(self) -> None:
        """Write what the server needs once, in its empty directory."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self, logged: str) -> bool:
        """Tell whether the server takes connections; `logged` is its log since the start."""
        raise NotImplementedError

    # --- its life -----------------------------------------------------------------

    def start(self) -> None:
        """Start it and return when it answers; after `stop` or `kill`, on what it had written.

        Raises:
            ServerMissing: its program is not on this machine.
            ServerFailed: it did not answer; its log is in the message.
        """
        with self._turn:
            if self._keeper is None:
                self._open()
            elif self._pid is not None:
                raise ServerFailed(f"{self.name} at port {self.port} is already started")
            if self.port:
                self._start_at(self.port)
                return
            for attempt in range(1, MOST_PORTS_TRIED + 1):
                port = _free_port()
                try:
                    self._start_at(port)
                except ServerFailed as failed:
                    self.port = 0
                    # Somebody took the port between our look and its bind.
                    if "Address already in use" not in str(failed) or attempt == MOST_PORTS_TRIED:
                        raise
                else:
                    return

    def stop(self) -> None:
        """Stop it in good order; connections are closed, what is committed stays."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """SIGKILL every process of it, and return when the last has gone."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End it and remove all that it wrote. Closing twice is allowed."""
        with self._turn:
            if self._keeper is None:
                return
            kept, self._keeper, self._pid, self.port = self._keeper, None, None, 0
            # The keeper ends when it reads the end of the pipe, after the server and its files.
            kept.communicate()
            # There is nothing left to remove, unless the keeper was killed.
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop every process of it for as long as the block lasts.

        Nobody is answered, though the kernel accepts connections and acknowledges what is sent.
        """
        with self._turn:
            stopped = [self.pid]
            try:
                # First the one that starts the others, so that none is born unseen.
                _stop(self.pid)
                for child in _children(self.pid):
                    stopped.append(child)
                    _stop(child)
                yield
            finally:
                for pid in reversed(stopped):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        """The server's first process, while it runs."""
        assert self._pid is not None, "it does not run"
        return self._pid

    @property
    def directory(self) -> Path:
        """Where its files are, until it is closed."""
        return self._directory

    @property
    def log(self) -> str:
        """What it has written to its log."""
        try:
            return self._log_file.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def url(self, database: str = "postgres") -> str:
        """The address of a database there, as libpq, psycopg and ulak read it."""
        return f"postgresql://{ROLE}@{HOST}:{self.port}/{database}"

    # --- how it is done -----------------------------------------------------------

    @property
    def _log_file(self) -> Path:
        return self._directory / "log"

    def _open(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=f"ulak-{self.name}-", dir=self.place))
        if self._user is not None:
            shutil.chown(self._directory, self._user)
        self._keeper = subprocess.Popen(  # noqa: S603 - this interpreter and a file of ours
            [
                *(*self.prefix, sys.executable, "-I", "-S", keeper.__file__),
                *(str(self._directory), self._user or "", str(os.getpid())),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._prepare()

    def _ask(self, do: str, **facts: object) -> Any:
        if self._keeper is None or self._keeper.stdin is None or self._keeper.stdout is None:
            raise ServerFailed(f"{self.name} is not started")
        try:
            self._keeper.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
            self._keeper.stdin.flush()
            line = self._keeper.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise ServerFailed(f"the keeper of {self.name} has died, and the server with it")
        answer = json.loads(line)
        if "error" in answer:
            raise ServerFailed(f"{self.name} could not be started: {answer['error']}")
        return answer["answer"]

    def _run(self, argv: list[str]) -> None:
        """Run a command of the server's to its end, as the server's user."""
        self._ask("start", argv=argv, log=str(self._log_file))
        code = self._ask("end", number=0, within_s=START_WITHIN_S)
        if code != 0:
            raise ServerFailed(f"{Path(argv[0]).name} ended with {code}:\n{self.log}")

    def _write(self, name: str, lines: list[str]) -> Path:
        """Write a file that the server's user may read, whatever the umask."""
        path = self._directory / name
        path.write_text("\n".join(lines) + "\n")
        if self._user is not None:
            shutil.chown(path, self._user)
        return path

    def _start_at(self, port: int) -> None:
        self.port = port
        before = len(self.log)
        self._pid = self._ask("start", argv=self._command(), log=str(self._log_file))
        give_up = time.monotonic() + START_WITHIN_S
        while not self._answers(self.log[before:]):
            code = self._ask("poll")
            if code is None and time.monotonic() < give_up:
                time.sleep(LOOK_EVERY_S)
                continue
            self._end(signal.SIGKILL)
            how = f"ended with {code}" if code is not None else f"took over {START_WITHIN_S:.0f} s"
            raise ServerFailed(
                f"{self.name} at port {port} {how} instead of answering:\n{self.log[before:]}"
            )

    def _end(self, number: signal.Signals) -> None:
        with self._turn:
            self._ask("end", number=int(number), within_s=STOP_WITHIN_S)
            self._pid = None


class Postgres(Server):
    """A PostgreSQL, with one database `postgres` and no password.

    Args:
        durable: whether what is committed also survives a power cut of the machine.
        settings: of postgresql.conf, over those that are set here.

    Raises:
        ServerMissing: there is no PostgreSQL on this machine.
    """

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": clients are cut off, nobody is waited for

    def __init__(
        self, *, durable: bool = False, settings: Mapping[str, str | int] | None = None
    ) -> None:
        super().__init__()
        self._programs = find_program("postgres").parent
        self.place = None if durable else _memory()
        self.settings: dict[str, str | int] = {
            "listen_addresses": HOST,
            "max_connections": 200,
            # Modest: several may run beside each other, in tests with little data.
            "shared_buffers": "64MB",
            # In files of its directory, which go with it; a killed server leaves the other kinds.
            "dynamic_shared_memory_type": "mmap",
            **(DURABLE if durable else HASTY),
            **(settings or {}),
        }

    def _prepare(self) -> None:
        self._run(
            [
                *(str(self._programs / "initdb"), "--pgdata", str(self._data)),
                *("--username", ROLE, "--auth", "trust", "--encoding", "UTF8", "--locale", "C"),
                *("--no-sync", "--no-instructions"),
            ]
        )

    def _command(self) -> list[str]:
        return [
            *(str(self._programs / "postgres"), "-D", str(self._data)),
            *("-p", str(self.port), "-k", str(self.directory)),
            *(f"--{name}={value}" for name, value in self.settings.items()),
        ]

    def _answers(self, logged: str) -> bool:
        # The file outlives a kill, so it counts only when it is of the process just started.
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        is_of_it = len(lines) > 7 and lines[0] == str(self._pid)
        return is_of_it and lines[7].strip() in ("ready", "standby")

    @property
    def _data(self) -> Path:
        return self.directory / "data"


class Pooler(Server):
    """A pgbouncer in front of a PostgreSQL, which gives out a connection for a transaction.

    Any database of the server is reached under its own name. The database `pgbouncer` is the
    pooler's own console.

    Raises:
        ServerMissing: there is no pgbouncer on this machine.
    """

    name = "pgbouncer"

    def __init__(
        self, postgres: Postgres, *, settings: Mapping[str, str | int] | None = None
    ) -> None:
        super().__init__()
        self._program = find_program("pgbouncer")
        self._postgres = postgres
        self._settings = {
            "listen_addr": HOST,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "admin_users": ROLE,
            "pool_mode": "transaction",
            # Nothing cleans a connection between two transactions: that is usual in this mode,
            # and whoever leaves state in a session is found out.
            "server_reset_query": "",
            # Drivers send this one unasked. `options` is refused, as pgbouncer does by itself:
            # settings of a session cannot hold behind it.
            "ignore_startup_parameters": "extra_float_digits",
            "max_client_conn": 2000,
            "default_pool_size": 20,
            # By itself it waits 15 s after a failed login; tests restart the server behind it.
            "server_login_retry": "0.1",
            **(settings or {}),
        }

    def _command(self) -> list[str]:
        users = self._write("users.txt", [f'"{ROLE}" ""'])
        lines = [
            "[databases]",
            f"* = host={HOST} port={self._postgres.port}",
            "[pgbouncer]",
            f"listen_port = {self.port}",
            f"auth_file = {users}",
            *(f"{name} = {value}" for name, value in self._settings.items()),
        ]
        return [str(self._program), str(self._write("pgbouncer.ini", lines))]

    def _answers(self, logged: str) -> bool:
        return "process up: PgBouncer" in logged


class Redis(Server):
    """A Redis without a password, which has flushed every write before it answers.

    Args:
        durable: whether its files are on the disk, for figures; else in memory if there is room.
        settings: of redis.conf, as it writes them, over those that are set here; such as
            `EVERY_SECOND`, `NOT_KEPT` and `EVICTING`.

    Raises:
        ServerMissing: there is no Redis on this machine.
    """

    name = "redis"

    def __init__(
        self, *, durable: bool = False, settings: Mapping[str, str | int] | None = None
    ) -> None:
        super().__init__()
        self._program = find_program("redis-server")
        self.place = None if durable else _memory()
        self.settings: dict[str, str | int] = {
            "bind": HOST,
            "databases": REDIS_DATABASES,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            **(settings or {}),
        }

    def url(self, database: str = "0") -> str:
        """The address of a database there, by its number."""
        return f"redis://{HOST}:{self.port}/{database}"

    def _command(self) -> list[str]:
        command = [str(self._program), "--port", str(self.port), "--dir", str(self.directory)]
        for name, value in self.settings.items():
            command += [f"--{name}", *(shlex.split(str(value)) or [""])]
        return command

    def _answers(self, logged: str) -> bool:
        return "Ready to accept connections" in logged


def _stop(pid: int) -> None:
    """Stop a process and return when it stands, or has gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    give_up = time.monotonic() + STOP_WITHIN_S
    while (found := _stat(pid)) is not None and found[0] not in "TZX":
        if time.monotonic() > give_up:
            raise ServerFailed(f"process {pid} did not stop within {STOP_WITHIN_S:.0f} s")
        time.sleep(LOOK_EVERY_S)


def _children(parent: int) -> list[int]:
    """Return the processes that a process has started and that have not ended."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if (found := _stat(pid)) is not None and found[1] == parent]


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the state and the parent of a process, as Linux tells them; None when it has gone."""
    try:
        # The name, in parentheses, may hold anything.
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return state, int(parent)


def find_program(name: str) -> Path:
    """Find a program of a server: on PATH, or where Debian puts it.

    Raises:
        ServerMissing: it is in none of these places.
    """
    # Of several versions that Debian keeps beside each other the newest.
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda b: b.parent.name.zfill(4))
    places = [os.environ.get("PATH", os.defpath), *map(str, reversed(debian)), "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise ServerMissing(
            f"{name} is not on PATH and not where Debian puts it; "
            "install postgresql, pgbouncer and redis-server, or run `make test`, which does"
        )
    return Path(found)


def _unprivileged_user() -> str:
    """Whom a server runs as that root has started; two of the servers refuse to run as root."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise ServerMissing("servers do not run as root, and there is no user postgres or nobody")


def _memory() -> Path | None:
    """The directory that is kept in memory, if there is one with room for a server."""
    try:
        roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM
    except FileNotFoundError:
        return None
    return MEMORY if roomy else None


def _free_port() -> int:
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port
