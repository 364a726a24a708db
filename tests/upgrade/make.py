"""Makes the fixture of a release: its database, full of work, on SQLite and on PostgreSQL.

    .venv/bin/python -m tests.upgrade.make          # writes tests/upgrade/<version>/

Run it once, with the code of the release. Everything is made by that code: worker, store,
services. Time stands still or is turned, and dice are seeded, so a second run differs in little.
"""

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

import ulak
from tests.upgrade import program
from tests.upgrade.program import DAY, HOUR, Outside
from ulak import ids
from ulak.auth.identity import Identity
from ulak.clock import ManualClock, micros, to_datetime
from ulak.idempotency import Guard
from ulak.services.contracts.contracts import Contracts
from ulak.services.contracts.ledger import HANDLER
from ulak.services.contracts.outbox.desk import emit
from ulak.services.contracts.outbox.remote import Remote
from ulak.services.contracts.outbox.sending import declare
from ulak.services.contracts.outbox.settings import RemoteSettings
from ulak.services.contracts.requests import Recording
from ulak.services.contracts.tables import versions_in_force
from ulak.testing import Harness
from ulak.testing.servers import Postgres, find_program
from ulak.wiring import store_of

HERE = Path(__file__).parent
BEGIN = datetime(2026, 1, 5, 8, tzinfo=UTC)
SEED = 90
CRASHING = 3
"""How many stages run when the worker of the fixture is killed."""


class Down(Outside):
    """Nothing can be reached, and each job fails in its own way."""

    def reach(self, run: ulak.Run[Any]) -> Any:
        how = run.payload.get("how", "")
        if how == "transient":
            raise ConnectionError("the carrier does not answer")
        if how == "permanent":
            raise LookupError("there is no such address")
        if how == "hold":
            return ulak.Hold("customs", "papers are missing")
        return self.release

    def undo(self, run: ulak.Run[Any]) -> None:
        raise ConnectionError("the railway does not answer")

    def publish(self, message: ulak.Message) -> None:
        if message.key.startswith("blocked"):
            raise ConnectionError("the broker does not answer")
        super().publish(message)


class Cut(Outside):
    """The power is cut when so many stages run."""

    def __init__(self, release: str, folder: Path) -> None:
        super().__init__(release, folder)
        self._together = threading.Barrier(CRASHING)

    def reach(self, run: ulak.Run[Any]) -> str:
        run.progress(0.5, "half way")
        time.sleep(2.5)  # progress is written once a second
        self._together.wait()
        os.kill(os.getpid(), signal.SIGKILL)
        return self.release


def fill(url: str, folder: Path) -> None:
    """Fill an empty store with the work of two days, and of one that was interrupted."""
    clock = ManualClock(BEGIN)
    with _harness(url, Outside("0", folder), clock) as harness:
        _serve_well(harness)
        _keep_records(harness.engine)
        _steer(harness.engine)
    with _harness(url, Down("0", folder), clock) as harness:
        _serve_badly(harness)
        with ulak.Engine(store_of(url, clock=clock)) as engine:
            _transact(engine)
        _leave_standing(harness)
    command = [sys.executable, "-m", __spec__.name, url, str(folder), str(clock.now())]
    killed = subprocess.run(command, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.returncode
    with _harness(url, Outside("0", folder), clock) as harness:
        engine = harness.engine
        asked = next(
            job for job in engine.jobs() if engine.inspect.payload(job.id)["name"] == "asked"
        )
        assert engine.cancel(asked.id, actor="ada", note="changed her mind").cancel_requested
        harness.submit(_flow(engine, "order"), {"name": "ready"}, actor="ada", priority=0)
        assert harness.verify() == []


def crash(url: str, folder: Path, now: int) -> None:
    """Work until the power is cut; runs in a child."""
    harness = _harness(url, Cut("0", folder), ManualClock(to_datetime(now)))
    engine = harness.engine.open()
    Guard(engine.store).begin(program.CHARGING)
    harness.submit(_flow(engine, "order"), {"name": "crashed"}, tenant="acme")
    harness.submit(_flow(engine, "order"), {"name": "asked"}, tenant="acme")
    harness.submit(_flow(engine, "press"), {"name": "pressed", "machine": "A"})
    harness.submit(_flow(engine, "press"), {"name": "second", "machine": "A"})
    harness.run_until_idle()


def _serve_well(harness: Harness) -> None:
    """Work that ended as it should: results, effects, messages, proofs."""
    engine = harness.engine
    harness.submit(_flow(engine, "order"), {"name": "done"}, tenant="acme", actor="ada")
    harness.submit(_flow(engine, "order"), {"name": "done too", "key": "shared"}, tenant="globex")
    for tenant in ("acme", "globex"):
        settled = harness.submit(_flow(engine, "claim"), {"name": f"settled {tenant}"},
                                 tenant=tenant, actor="ada")  # fmt: skip
        engine.decide(settled.id, "approve", actor="bob", note="seen")
        engine.signal(settled.id, "paid", {"amount": 12}, actor="bank")
    harness.submit(_flow(engine, "claim"), {"name": "gate"}, tenant="acme", actor="ada")
    waits = harness.submit(_flow(engine, "claim"), {"name": "signal"}, tenant="acme", actor="ada")
    engine.decide(waits.id, "approve", actor="bob")
    for version in (1, 2):
        old = next(f for f in engine.inspect.flows if (f.name, f.version) == ("letter", version))
        harness.submit(old, {"name": f"letter {version}"}, actor="ada")
    harness.run_until_idle()


def _keep_records(engine: ulak.Engine) -> None:
    """Credentials, and an answer that is kept."""
    identity = Identity(engine.store, secret="s" * 32)
    identity.adopt_key(program.KEY, name="fixture", roles=["operator"], actor="ada")
    revoked = identity.create_key("lost", roles=["viewer"], actor="ada", tenant="acme")
    identity.revoke_key(revoked.key.id, actor="ada", note="lost on a train")
    identity.create_user("ada", program.PASSWORD, roles=["admin"], actor="cli")
    Guard(engine.store).execute(program.CHARGED, lambda execution: program.RECEIPT)


def _steer(engine: ulak.Engine) -> None:
    """What operators have set."""
    engine.flow_control.set_limit("order/packed", 5, actor="ada", note="a new van")
    engine.flow_control.set_rate(
        "report/queued", ulak.Rate(4, per=timedelta(seconds=1), burst=2), actor="ada"
    )  # fmt: skip
    engine.flow_control.set_weight("acme", 3, actor="ada")
    engine.flow_control.pause(queue="night", actor="ada", note="neighbours")
    engine.flow_control.pause(flow="nap", until=HOUR, actor="ada")
    engine.flow_control.pause(key="B", actor="ada", note="machine B is being cleaned")
    engine.schedules.pause("nightly", actor="ada", note="holidays")


def _serve_badly(harness: Harness) -> None:
    """Two days on which nothing could be reached: dead letters, dead messages, expired jobs."""
    engine = harness.engine
    order = _flow(engine, "order")
    harness.submit(order, {"name": "failed", "how": "transient"}, tenant="acme", actor="ada")
    harness.submit(order, {"name": "permanent", "how": "permanent"}, tenant="acme")
    harness.submit(order, {"name": "dead message", "key": "blocked for good"})
    harness.submit(order, {"name": "expired"}, after=3 * HOUR, expires=2 * HOUR)
    cancelled = harness.submit(order, {"name": "cancelled"}, after=3 * HOUR)
    engine.cancel(cancelled.id, actor="ada", note="wrong address")
    harness.advance(days=2)


def _leave_standing(harness: Harness) -> None:
    """One job in every place where a job can stand."""
    engine = harness.engine
    order, report = _flow(engine, "order"), _flow(engine, "report")
    harness.submit(order, {"name": "held", "how": "hold"}, tenant="acme", actor="ada")
    harness.submit(order, {"name": "retried", "how": "transient"}, tenant="acme")
    harness.submit(order, {"name": "unsent", "key": "blocked today"})
    harness.submit(order, {"name": "delayed"}, after=DAY)
    harness.submit(_flow(engine, "booking"), {"name": "undoing"}, tenant="acme")
    harness.submit(_flow(engine, "nap"), {"name": "napping"})
    harness.submit(_flow(engine, "press"), {"name": "paused key", "machine": "B"})
    harness.submit(_flow(engine, "quiet"), {"name": "paused queue"})
    for n, tenant in enumerate(("acme", "acme", "globex", "globex")):
        harness.submit(report, {"name": f"report {n}"}, tenant=tenant)
    harness.run_until_idle()


def _transact(engine: ulak.Engine) -> None:
    """Contracts: subjects, proofs, and events that are sent, rejected, dead, leased and due."""
    settings = RemoteSettings(mode="hybrid", base_url="http://remote.test", api_key="k" * 32)
    transport = httpx.MockTransport(lambda request: answers[_subject(request)])
    declare(engine, Remote(settings, transport=transport))
    contracts = Contracts(engine, versions_in_force({}), on_change=partial(emit, engine))
    for subject in ("sent", "rejected", "dead", "leased", "due"):
        contracts.transition(program.transition(subject))
    contracts.record(Recording("acme", "note", '{"text": "seen"}', key="note-1", caller="ada"))
    answers = {
        "sent": httpx.Response(200, json={"ok": True, "from": "pending", "to": "paid"}),
        "rejected": httpx.Response(422, json={"ok": False, "reason": "terminal_state"}),
        "dead": httpx.Response(400, json={"code": "no_such_field"}),
    }
    engine.outbox.deliver(HANDLER, limit=3)
    engine.store.take_messages(HANDLER, 1, hold_us=micros(HOUR))


def _subject(request: httpx.Request) -> str:
    return str(json.loads(request.content)["subject_ref"]["id"])


def _harness(url: str, outside: Outside, clock: ManualClock) -> Harness:
    return Harness.of(program.make_engine("memory://", outside), url=url, clock=clock)


def _flow(engine: ulak.Engine, name: str) -> ulak.Flow[Any]:
    return next(flow for flow in engine.inspect.flows if flow.name == name)


# --- writing it down ------------------------------------------------------------------


def dump_sqlite(path: Path) -> str:
    """Write a SQLite file as statements that make it again."""
    with closing(sqlite3.connect(path)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        return "\n".join([f"PRAGMA user_version = {version};", *db.iterdump(), ""])


def dump_postgres(url: str) -> str:
    """Write the schema `ulak` of a database as statements that make it again."""
    dump = find_program("pg_dump")
    options = ["--schema=ulak", "--no-owner", "--no-privileges", "--inserts", "--dbname", url]
    text = subprocess.run([dump, *options], check=True, capture_output=True, text=True).stdout
    # Comments, settings of one server version, and commands of psql.
    foreign = ("--", "SET ", "SELECT pg_catalog.set_config", "\\")
    lines = [line for line in text.splitlines() if line and not line.startswith(foreign)]
    return "\n".join([*lines, ""])


def _without_paths(dump: str) -> str:
    """Leave out of the tracebacks in a dump where the repository lies on this machine."""
    return dump.replace(f"{HERE.parents[1]}/", "/ulak/")


def main() -> None:
    """Make both databases and keep them beside this file."""
    if len(sys.argv) > 1:
        url, folder, now = sys.argv[1:]
        _seed(SEED + 1)
        crash(url, Path(folder), int(now))
        return
    kept = HERE / ulak.__version__
    if kept.exists():
        sys.exit(f"{kept} is there: a fixture is made once, by the code of its release")
    kept.mkdir()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "fixture.db")
        _seed()
        fill(f"sqlite:///{path}", Path(name))
        (kept / "sqlite.sql").write_text(_without_paths(dump_sqlite(path)))
        with Postgres() as server:
            _seed()
            fill(server.url(), Path(name))
            (kept / "postgres.sql").write_text(_without_paths(dump_postgres(server.url())))
    for file in sorted(kept.iterdir()):
        sys.stdout.write(f"{file.relative_to(HERE.parents[1])}: {file.stat().st_size} bytes\n")


def _seed(number: int = SEED) -> None:
    """Have ids, tokens and salts come out the same each time, for the code that runs here."""
    dice = random.Random(number)  # noqa: S311 - the point is that they can be guessed
    ids._dice.seed(number)
    os.urandom = dice.randbytes
    random._urandom = dice.randbytes


if __name__ == "__main__":
    with mock.patch.object(socket, "gethostname", return_value="fixture"):
        main()
