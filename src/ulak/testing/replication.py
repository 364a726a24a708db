"""A streaming replica of a PostgreSQL, which can fall behind and can take over.

with Postgres() as primary, Standby(primary) as standby:
    store = PostgresStore(standby.shared_url())    # leads to the one that takes writes
    standby.catch_up()                             # what is committed now is there as well
    standby.cut_off()                              # what is committed from now on is not
    primary.kill()
    standby.promote()
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg

from ulak.testing.servers import (
    HOST,
    LOOK_EVERY_S,
    ROLE,
    START_WITHIN_S,
    Postgres,
    ServerFailed,
    find_program,
)

READY_FOR_WRITES = "database system is ready to accept connections"
HAS_REST = "SELECT pg_last_wal_replay_lsn() < pg_last_wal_receive_lsn()"
# The last of it may be a part of a record, which is never replayed.
REST_WITHIN_S = 10.0
HAS_REPLAYED = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"


class Standby(Postgres):
    """A replica of a server that runs, asynchronous unless that one says otherwise.

    It is copied from it at the first start, and has its settings.
    """

    name = "standby"

    def __init__(self, primary: Postgres) -> None:
        super().__init__(settings=primary.settings)
        self.place = primary.place
        self.primary = primary

    def shared_url(self, database: str = "postgres") -> str:
        """The address of a database for clients that go on with the new server."""
        hosts = ",".join(f"{HOST}:{server.port}" for server in (self.primary, self))
        return f"postgresql://{ROLE}@{hosts}/{database}?target_session_attrs=read-write"

    def catch_up(self) -> None:
        """Return when everything is here that the primary had committed at the call."""
        ((position,),) = ask(self.primary, "SELECT pg_current_wal_lsn()")
        self._wait(lambda: ask(self, HAS_REPLAYED, position) == [(True,)], "has not caught up")

    def cut_off(self) -> None:
        """Receive nothing more, and return when what was received is there to be read."""
        ask(self, "ALTER SYSTEM SET primary_conninfo = ''")
        ask(self, "SELECT pg_reload_conf()")
        self._wait(lambda: not ask(self, "SELECT 1 FROM pg_stat_wal_receiver"), "still receives")
        give_up = time.monotonic() + REST_WITHIN_S
        while ask(self, HAS_REST) == [(True,)] and time.monotonic() < give_up:
            time.sleep(LOOK_EVERY_S)

    def promote(self) -> None:
        """Take over with what was received, and return when writes are taken."""
        before = len(self.log)
        # As `pg_ctl promote` does, which only its own user may run.
        self._write("data/promote", [])
        os.kill(self.pid, signal.SIGUSR1)
        self._wait(lambda: READY_FOR_WRITES in self.log[before:], "was not promoted")

    def _prepare(self) -> None:
        # On PATH may be a link to the server alone, and a wrapper that looks for clusters.
        program = find_program("postgres").resolve().with_name("pg_basebackup")
        self._run(
            [
                *(str(program), "--pgdata", str(self._data)),
                *("--dbname", self.primary.url(), "--write-recovery-conf"),
                *("--checkpoint", "fast", "--wal-method", "stream", "--no-sync"),
            ]
        )

    def _wait(self, is_so: Callable[[], bool], failure: str) -> None:
        give_up = time.monotonic() + START_WITHIN_S
        while not is_so():
            if time.monotonic() > give_up:
                raise ServerFailed(f"the standby {failure}:\n{self.log}")
            time.sleep(LOOK_EVERY_S)


def ask(server: Postgres, statement: str, *values: object, database: str = "postgres") -> list[Any]:
    """Run one statement on a connection of its own and return its rows."""
    with psycopg.connect(server.url(database), autocommit=True) as db:
        answer = db.execute(statement, values)
        return answer.fetchall() if answer.description else []
