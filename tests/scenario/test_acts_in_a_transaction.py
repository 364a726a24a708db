"""Acts with `connection=`: they are part of the caller's own transaction, like a submit."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import ulak
from tests.scenario.callers import OWN_TABLE, POSTGRES, SQLITE, Caller, on_postgres, on_sqlite
from ulak.clock import micros
from ulak.errors import NotSupported
from ulak.ids import from_text
from ulak.testing import Harness
from ulak.testing.conformance.desk import claim_request

EVERY = [("sqlite", kind) for kind in SQLITE] + [("postgres", kind) for kind in POSTGRES]
PLAIN = [("sqlite", "sqlite3"), ("postgres", "psycopg")]
each_kind = pytest.mark.parametrize("where", EVERY, indirect=True)
each_store = pytest.mark.parametrize("where", PLAIN, indirect=True)
HOUR = timedelta(hours=1)


def errands(**options: Any) -> ulak.Flow[Any]:
    """A question, work that may fail or be held, and a wait for a payment."""
    flow: ulak.Flow[Any] = ulak.Flow(
        "errands",
        ulak.Lifecycle("asked", {"asked": ["new"], "new": ["unpaid"], "unpaid": ["done"]}),
        retry=0,
        dedup=ulak.Dedup(lambda payload: payload["name"]),
        **options,
    )
    flow.gate("asked", choices={"yes": "new", "no": "failed"})

    @flow.stage("new", limit=ulak.Limit(2), rate=ulak.Rate(9, per=HOUR))
    def work(run: ulak.Run[Any]) -> Any:
        if run.payload["name"] == "held":
            return ulak.Hold("look")
        if run.payload["name"] == "failed":
            raise ValueError("no")
        return None

    flow.wait("unpaid", signal="paid", to="done")
    return flow


class Place:
    """A program with a table of its own where its jobs are, and a connection of its own."""

    def __init__(self, url: str, caller: Caller, flow: ulak.Flow[Any]) -> None:
        self.flow = flow
        self.harness = Harness(flow, url=url)
        self.engine = self.harness.engine
        self.caller = caller
        self.url = url

    def call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """Call a verb of the engine, or of `engine.aio`, with the caller's connection."""
        found: Any = self.engine.aio if self.caller.is_async else self.engine
        for name in verb.split("."):
            found = getattr(found, name)
        return self.caller.do(found(*arguments, connection=self.caller.connection, **options))

    def jobs(self) -> dict[str, str]:
        """Bring a job to each place where it can be acted on; answer their ids."""
        names = ("asked", "held", "failed", "unpaid", "cancelled", "expired")
        ids = {name: self.harness.submit(self.flow, {"name": name}).id for name in names}
        for name in ("held", "failed", "unpaid"):
            self.engine.decide(ids[name], "yes", actor="op")
        self.harness.run_until_idle()
        return ids

    def states(self, ids: dict[str, str]) -> dict[str, str]:
        return {name: self.engine.get(job_id).state for name, job_id in ids.items()}


@pytest.fixture
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    store, kind = request.param
    if store == "sqlite":
        url = f"sqlite:///{tmp_path}/jobs.db"
        ulak.connect(url).open().close()
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
            db.execute(OWN_TABLE)
        yield from _placed(url, on_sqlite(kind, tmp_path / "jobs.db"))
        return
    with request.getfixturevalue("databases").lend(_prepare) as url:
        yield from _placed(url, on_postgres(kind, url))


def _prepare(url: str) -> None:
    with psycopg.connect(url) as db:
        db.execute(OWN_TABLE)
    Harness(url=url).engine.open().close()


def _placed(url: str, caller: Caller) -> Iterator[Place]:
    place = Place(url, caller, errands())
    with place.harness:
        yield place
        caller.close()


# --- what is promised -----------------------------------------------------------------


def act_on_all(place: Place, ids: dict[str, str]) -> None:
    place.caller.order(1)
    assert place.call("decide", ids["asked"], "yes", actor="op").state == "new"
    assert place.call("release", ids["held"], actor="op").state == "new"
    assert place.call("retry", ids["failed"], actor="op").round == 2
    assert place.call("signal", ("errands", "unpaid"), "paid", {"by": "card"}).state == "done"
    assert place.call("cancel", ids["cancelled"], actor="op").state == "cancelled"
    assert place.call("expire", ids["expired"], actor="op").state == "expired"
    place.call("note", ids["expired"], "desk.told", "by post", actor="op", n=1)


@each_kind
@pytest.mark.shows("E-87", "E-88")
def test_acts_count_when_the_caller_commits_and_never_were_when_it_rolls_back(
    where: Place,
) -> None:
    ids = where.jobs()
    before = where.states(ids)
    act_on_all(where, ids)
    assert where.states(ids) == before
    where.caller.rollback()
    assert where.states(ids) == before
    assert where.engine.inspect.verify() == []
    act_on_all(where, ids)
    where.caller.commit()
    assert where.states(ids) == {
        "asked": "new", "held": "new", "failed": "new", "unpaid": "done",
        "cancelled": "cancelled", "expired": "expired",
    }  # fmt: skip
    told = where.engine.inspect.trail(ids["expired"])[-1]
    assert (told.kind, told.message, told.details) == ("desk.told", "by post", {"n": 1})
    assert where.engine.inspect.verify() == []
    where.harness.run_until_idle()
    assert where.states(ids)["asked"] == "unpaid"
    assert where.engine.inspect.verify() == []


@each_kind
@pytest.mark.shows("E-87", "E-88")
def test_an_act_sees_what_the_transaction_did_before_it(where: Place) -> None:
    where.caller.order(1)
    job = where.call("submit", where.flow, {"name": "one"}, repeat_note="errands.repeated")
    again = where.call("submit", where.flow, {"name": "one"}, repeat_note="errands.repeated")
    assert (again.id, again.created) == (job.id, False)
    assert where.call("decide", job.id, "yes", actor="op").state == "new"
    with pytest.raises(ulak.TransitionNotAllowed, match="op has decided"):
        where.call("decide", job.id, "yes", actor="late")
    assert where.call("cancel", job.id, actor="op").state == "cancelled"
    assert where.engine.jobs() == []
    where.caller.commit()
    kinds = [e.kind for e in where.engine.inspect.trail(job.id)]
    assert kinds == ["submitted", "errands.repeated", "decided", "cancelled"]
    assert where.harness.submit(where.flow, {"name": "one"}).created
    assert where.engine.inspect.verify() == []


@each_kind
@pytest.mark.shows("E-87", "E-60")
def test_flow_control_is_in_force_when_the_caller_commits(where: Place) -> None:
    control, name = where.engine.flow_control, "errands/new"

    def steer() -> None:
        where.caller.order(1)
        assert where.call("flow_control.set_limit", name, 1, actor="op").n == 1
        rate = ulak.Rate(2, per=HOUR)
        assert where.call("flow_control.set_rate", name, rate, actor="op").n == 2
        where.call("flow_control.pause", flow="errands", actor="op", note="stocktaking")
        where.call("flow_control.pause", key="bank", actor="op")
        where.call("flow_control.resume", key="bank", actor="op")
        where.call("flow_control.set_weight", "acme", 3, actor="op")

    def seen() -> list[Any]:
        return [
            [limit.n for limit in control.limits()],
            [rate.n for rate in control.rates()],
            [pause.name for pause in control.pauses()],
            [weight.weight for weight in control.weights()],
            len(where.engine.inspect.audit()),
        ]

    steer()
    where.caller.rollback()
    assert seen() == [[2], [9], [], [], 0]
    steer()
    assert seen() == [[2], [9], [], [], 0]
    where.caller.commit()
    assert seen() == [[1], [2], ["errands"], [3], 6]
    assert where.engine.inspect.verify() == []


@each_store
@pytest.mark.shows("E-87", "E-39")
def test_of_a_job_that_runs_a_request_is_left_with_the_transaction(where: Place) -> None:
    job = where.harness.submit(where.flow, {"name": "one"})
    where.engine.decide(job.id, "yes", actor="op")
    store, lanes = where.engine.store, tuple(where.flow.table.lanes)
    store.register("ghost", lease_us=micros(HOUR), lanes=lanes, about="")
    assert len(store.claim(claim_request("ghost", 1, [where.flow])).claims) == 1
    for end in ("rollback", "commit"):
        where.caller.order(1)
        assert where.call("cancel", job.id, actor="op").cancel_requested
        where.call("note", job.id, "desk.told", "while it runs", actor="op")
        with pytest.raises(ulak.TransitionNotAllowed, match="a worker runs it"):
            where.call("release", job.id, actor="op")
        getattr(where.caller, end)()
        asked = [r.kind for r in store.pending_requests(from_text(job.id))]
        assert sorted(asked) == (["cancel", "note"] if end == "commit" else [])
    where.harness.clock.advance(2 * HOUR)
    where.harness.run_until_idle()
    assert where.engine.get(job.id).state == "cancelled"
    kinds = [e.kind for e in where.engine.inspect.trail(job.id)]
    assert {"desk.told", "cancelled"} <= set(kinds)
    assert where.engine.inspect.verify() == []


@each_store
@pytest.mark.shows("E-87")
def test_an_act_may_be_part_of_a_transaction_that_the_engine_lends(where: Place) -> None:
    ids = where.jobs()
    with where.engine.transaction() as lent:
        lent.execute("INSERT INTO orders VALUES (1)")
        where.engine.cancel(ids["asked"], actor="op", connection=lent)
        where.engine.flow_control.pause(flow="errands", actor="op", connection=lent)
        assert where.engine.get(ids["asked"]).state == "asked"
    assert where.engine.get(ids["asked"]).state == "cancelled"
    assert [pause.name for pause in where.engine.flow_control.pauses()] == ["errands"]
    assert where.engine.inspect.verify() == []


@each_store
@pytest.mark.shows("E-87", "E-30")
def test_a_refusal_changes_nothing_and_the_transaction_goes_on(where: Place) -> None:
    ids = where.jobs()
    where.harness.submit(where.flow, {"name": "failed"})
    before = where.states(ids)
    where.caller.order(1)
    with pytest.raises(ulak.KeyTaken):
        where.call("retry", ids["failed"], actor="op")
    with pytest.raises(ulak.TransitionNotAllowed):
        where.call("release", ids["asked"], actor="op")
    with pytest.raises(ulak.JobNotFound):
        where.call("cancel", "0" * 32, actor="op")
    with pytest.raises(ulak.UlakError, match="there is no limit"):
        where.call("flow_control.set_limit", "errands/old", 1, actor="op")
    with pytest.raises(ulak.BadInput, match="actor="):
        where.call("note", ids["asked"], "desk.told", actor="")
    where.caller.commit()
    assert where.states(ids) == before
    assert where.caller.execute("SELECT count(*) FROM orders").fetchone()[0] == 1
    assert where.engine.inspect.verify() == []


@pytest.mark.shows("E-87", "E-47")
def test_an_act_on_a_job_with_proofs_is_chained_on_sqlite(tmp_path: Path) -> None:
    flow = errands(proofs=True)
    with Harness(flow, path=tmp_path / "jobs.db") as harness:
        job = harness.submit(flow, {"name": "one"})
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
            db.execute("BEGIN IMMEDIATE")
            harness.engine.cancel(job.id, actor="op", connection=db)
            db.commit()
        assert harness.job(job.id).state == "cancelled"
        assert harness.verify() == []


# --- what cannot work -----------------------------------------------------------------


@pytest.mark.shows("E-87")
def test_the_memory_store_says_that_it_has_no_transaction_to_be_part_of() -> None:
    flow = errands()
    with Harness(flow) as harness, closing(sqlite3.connect(":memory:")) as db:
        job, engine = harness.submit(flow, {"name": "one"}), harness.engine
        for act in (
            lambda: engine.cancel(job.id, actor="op", connection=db),
            lambda: engine.decide(job.id, "yes", actor="op", connection=db),
            lambda: engine.note(job.id, "desk.told", actor="op", connection=db),
            lambda: engine.flow_control.pause(flow="errands", actor="op", connection=db),
        ):
            with pytest.raises(NotSupported, match=r"connection=.*memory store.*leave connection="):
                act()
        with pytest.raises(NotSupported, match=r"owners\.add\(connection="):
            engine.owners.add(job.id, "bob", connection=db)
        with pytest.raises(NotSupported, match=r"engine\.reading\(\)"), engine.reading():
            pass
        assert [e.kind for e in harness.trail(job.id)] == ["submitted"]


@each_kind
@pytest.mark.shows("E-87")
def test_a_connection_belongs_to_the_verb_of_its_kind(where: Place) -> None:
    job = where.harness.submit(where.flow, {"name": "one"})
    mine = where.caller.connection
    if where.caller.is_async:
        with pytest.raises(ulak.BadInput, match=r"await engine\.aio\.cancel\("):
            where.engine.cancel(job.id, actor="op", connection=mine)
    else:
        with pytest.raises(ulak.BadInput, match=r"engine\.cancel\(.*on the thread that has it"):
            asyncio.run(_await(where.engine.aio.cancel(job.id, actor="op", connection=mine)))
    with pytest.raises(ulak.BadInput, match=r"connection=object.*give"):
        where.engine.cancel(job.id, actor="op", connection=object())
    assert where.engine.get(job.id).state == "asked"


async def _await(promise: Any) -> Any:
    return await promise


@pytest.mark.shows("E-87")
def test_on_sqlite_the_connection_is_checked_and_left_as_it_was(tmp_path: Path) -> None:
    flow, path = errands(), tmp_path / "jobs.db"
    with Harness(flow, path=path) as harness:
        engine, job = harness.engine, harness.submit(flow, {"name": "one"})
        with closing(sqlite3.connect(path)) as db:
            with pytest.raises(ulak.BadInput, match="must have begun as a write"):
                engine.cancel(job.id, actor="op", connection=db)
            db.execute("BEGIN")
            db.execute("SELECT 1").fetchall()
            with pytest.raises(ulak.BadInput, match="must have begun as a write"):
                engine.cancel(job.id, actor="op", connection=db)
            db.rollback()
            db.row_factory, db.text_factory = sqlite3.Row, bytes
            db.execute("CREATE TEMP TABLE jobs (id)")
            db.execute("BEGIN IMMEDIATE")
            with pytest.raises(ulak.BadInput, match="temporary table of yours, jobs"):
                engine.cancel(job.id, actor="op", connection=db)
            db.execute("DROP TABLE temp.jobs")
            assert engine.decide(job.id, "yes", actor="çelebi", connection=db).state == "new"
            assert (db.row_factory, db.text_factory) == (sqlite3.Row, bytes)
            db.commit()
        with closing(sqlite3.connect(tmp_path / "other.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(ulak.BadInput, match="a transaction is of one file"):
                engine.cancel(job.id, actor="op", connection=other)
        assert harness.trail(job.id)[-1].actor == "çelebi"
        assert harness.verify() == []


@pytest.mark.shows("E-87")
def test_on_sqlite_a_connection_with_converters_of_our_types_is_refused(tmp_path: Path) -> None:
    flow, path = errands(), tmp_path / "jobs.db"
    with Harness(flow, path=path) as harness:
        job = harness.submit(flow, {"name": "one"})
        sqlite3.register_converter("INTEGER", lambda said: said)
        try:
            with closing(sqlite3.connect(path, detect_types=sqlite3.PARSE_DECLTYPES)) as db:
                db.execute("BEGIN IMMEDIATE")
                with pytest.raises(ulak.BadInput, match="connect without detect_types"):
                    harness.engine.cancel(job.id, actor="op", connection=db)
        finally:
            del sqlite3.converters["INTEGER"]
        assert harness.job(job.id).state == "asked"


@pytest.mark.parametrize("where", [("postgres", "psycopg")], indirect=True)
@pytest.mark.shows("E-87")
def test_on_postgres_the_connection_is_checked_and_left_as_it_was(where: Place) -> None:
    job = where.harness.submit(where.flow, {"name": "one"})
    elsewhere = where.url.rpartition("/")[0] + "/postgres"
    for db, why in (
        (psycopg.connect(where.url, autocommit=True), "commits each statement by itself"),
        (psycopg.connect(elsewhere), "another database"),
    ):
        with db, pytest.raises(ulak.BadInput, match=why):
            where.engine.cancel(job.id, actor="op", connection=db)
    with psycopg.connect(where.url, row_factory=dict_row) as db:
        assert where.engine.cancel(job.id, actor="op", connection=db).state == "cancelled"
        assert db.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    assert where.engine.get(job.id).state == "cancelled"


@pytest.mark.shows("E-87", "E-47")
@pytest.mark.parametrize("where", [("postgres", "psycopg")], indirect=True)
def test_on_postgres_an_act_on_a_job_with_proofs_is_refused(where: Place) -> None:
    flow = errands(proofs=True, version=2)
    where.engine.add(flow)
    job = where.harness.submit(flow, {"name": "one"})
    with psycopg.connect(where.url) as db, pytest.raises(NotSupported, match="has proofs"):
        where.engine.cancel(job.id, actor="op", connection=db)
    assert where.engine.get(job.id).state == "asked"


@pytest.mark.shows("E-87")
@pytest.mark.parametrize("where", [("postgres", "psycopg async")], indirect=True)
def test_an_act_that_is_cancelled_has_ended_before_its_caller_goes_on(where: Place) -> None:
    job = where.harness.submit(where.flow, {"name": "one"})
    mine = where.caller.connection

    async def give_up() -> None:
        act = asyncio.ensure_future(where.engine.aio.cancel(job.id, actor="op", connection=mine))
        with psycopg.connect(where.url, autocommit=True) as look:
            deadline = time.monotonic() + 120
            waiting = (
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            while not look.execute(waiting).fetchone()[0] and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
        act.cancel()
        with pytest.raises(asyncio.CancelledError):
            await act
        await mine.rollback()

    with psycopg.connect(where.url) as other:
        other.execute("SELECT 1 FROM ulak.jobs FOR UPDATE")
        where.caller.do(give_up())
        other.rollback()
    where.caller.order(1)
    where.caller.commit()
    assert where.engine.get(job.id).state == "asked"
    assert where.call("cancel", job.id, actor="op").state == "cancelled"
    where.caller.commit()
    assert where.engine.inspect.verify() == []
