"""`submit(connection=)`: a job is part of the caller's own transaction, on a SQLite file."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

import ulak
from tests.scenario.callers import OWN_TABLE, SQLITE, Caller, on_sqlite
from tests.scenario.doubles import SOON, settings
from ulak import BadInput, Dedup, Flow, Lifecycle, Until
from ulak.testing import Harness

each_kind = pytest.mark.parametrize("kind", SQLITE)
BEGUN_AS_A_WRITE = "must have begun as a write.*BEGIN IMMEDIATE"


def shipping(**options: Any) -> Flow[Any]:
    """A flow whose jobs are one for each order number."""
    dedup = Dedup(key=lambda payload: str(payload["order"]), until=Until.FAILED_FOR_GOOD)
    made: Flow[Any] = Flow(
        "shipping", Lifecycle("asked", {"asked": ["done"]}), **{"dedup": dedup} | options
    )

    @made.stage("asked")
    def ship(run: Any) -> Any:
        return run.payload["order"]

    return made


class Shop:
    """A program with a table of its own in the file of its jobs."""

    def __init__(self, path: Path, flow: Flow[Any]) -> None:
        self.path = path
        self.flow = flow
        self.harness = Harness(flow, path=path)
        self.engine = self.harness.engine.open()
        with closing(sqlite3.connect(path)) as db:
            db.execute(OWN_TABLE)

    def orders(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as db:
            return [n for (n,) in db.execute("SELECT number FROM orders ORDER BY number")]

    def is_untouched(self) -> bool:
        """Nothing was stored, not even a half."""
        return (
            self.orders() == []
            and self.engine.jobs() == self.engine.inspect.counts() == []
            and self.engine.inspect.verify() == []
        )


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "shop.db", shipping())
    with made.harness:
        yield made


@pytest.fixture
def mine(shop: Shop, kind: str) -> Iterator[Caller]:
    made = on_sqlite(kind, shop.path)
    yield made
    made.close()


# --- what is promised -----------------------------------------------------------------


@each_kind
@pytest.mark.shows("E-33")
def test_a_commit_stores_the_job_with_the_callers_rows(shop: Shop, mine: Caller) -> None:
    mine.order(1)
    job = mine.submit(shop.engine, shop.flow, {"order": 1}, tenant="acme", actor="ada")
    assert (job.created, job.state, job.tenant) == (True, "asked", "acme")
    assert shop.is_untouched()
    mine.commit()
    assert shop.orders() == [1]
    stored = shop.engine.get(job.id)
    assert stored == job
    assert [e.kind for e in shop.engine.inspect.trail(job.id)] == ["submitted"]
    assert shop.engine.inspect.verify() == []
    shop.harness.run_until_idle()
    assert shop.engine.result(job.id) == 1
    assert shop.engine.inspect.verify() == []


@each_kind
@pytest.mark.shows("E-33")
def test_a_rollback_takes_the_job_with_it(shop: Shop, mine: Caller) -> None:
    mine.order(1)
    lost = mine.submit(shop.engine, shop.flow, {"order": 1})
    mine.rollback()
    assert shop.is_untouched()
    again = shop.engine.submit(shop.flow, {"order": 1})
    assert again.created
    assert again.id != lost.id


@each_kind
@pytest.mark.shows("E-33", "E-30")
def test_a_duplicate_is_answered_with_the_first_job_and_harms_nothing(
    shop: Shop, mine: Caller
) -> None:
    first = shop.engine.submit(shop.flow, {"order": 1}, tenant="Ä", actor="çelebi")
    mine.order(1)
    same = mine.submit(shop.engine, shop.flow, {"order": 1}, tenant="Ä")
    assert not same.created
    assert same.id == first.id
    assert (same.submitter, same.tenant) == ("çelebi", "Ä")
    own = mine.submit(shop.engine, shop.flow, {"order": 2})
    assert own.created
    twin = mine.submit(shop.engine, shop.flow, {"order": 2})
    assert not twin.created
    assert twin.id == own.id
    mine.commit()
    assert shop.orders() == [1]
    assert {job.id for job in shop.engine.jobs()} == {first.id, own.id}
    assert shop.engine.inspect.verify() == []


@each_kind
@pytest.mark.shows("E-30", "E-33")
def test_an_expired_key_is_taken_over(tmp_path: Path, kind: str) -> None:
    keep = timedelta(hours=1)
    dedup = Dedup(key=lambda payload: "one", until=Until.FORGOTTEN, keep=keep)
    shop = Shop(tmp_path / "shop.db", shipping(dedup=dedup))
    with shop.harness, closing(on_sqlite(kind, shop.path)) as mine:
        first = shop.engine.submit(shop.flow, {"order": 1})
        shop.harness.advance(hours=2)
        mine.order(2)
        second = mine.submit(shop.engine, shop.flow, {"order": 2})
        assert second.created
        mine.commit()
        third = shop.engine.submit(shop.flow, {"order": 3})
        assert (third.created, third.id) == (False, second.id)
        assert first.id != second.id
        assert shop.engine.inspect.verify() == []


@each_kind
@pytest.mark.shows("E-33", "E-47")
def test_a_job_with_proofs_is_chained_by_the_callers_commit(tmp_path: Path, kind: str) -> None:
    shop = Shop(tmp_path / "shop.db", shipping(proofs=True))
    with shop.harness, closing(on_sqlite(kind, shop.path)) as mine:
        shop.engine.submit(shop.flow, {"order": 1})
        mine.order(2)
        mine.submit(shop.engine, shop.flow, {"order": 2})
        mine.submit(shop.engine, shop.flow, {"order": 3})
        mine.rollback()
        mine.order(4)
        mine.submit(shop.engine, shop.flow, {"order": 4})
        mine.commit()
        shop.harness.run_until_idle()
        assert [p.proof_id for p in shop.engine.store.scan_proofs("")] == [1, 2, 3, 4]
        assert shop.engine.inspect.verify() == []


@pytest.mark.shows("E-33")
def test_a_working_worker_finds_the_job_after_the_commit(tmp_path: Path) -> None:
    path, flow = tmp_path / "shop.db", shipping()
    engine = ulak.connect(f"sqlite:///{path}", flows=[flow])
    with engine, engine.working(settings()), closing(sqlite3.connect(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        job = engine.submit(flow, {"order": 7}, connection=db)
        db.commit()
        assert engine.wait(job.id, timeout=SOON).state == "done"


# --- what the caller has set up does not matter ---------------------------------------


@pytest.mark.shows("E-33")
def test_factories_converters_and_isolation_levels_do_not_matter_and_stay(shop: Shop) -> None:
    first = shop.engine.submit(shop.flow, {"order": 1}, actor="ada")
    for level in (None, "", "IMMEDIATE"):
        db = sqlite3.connect(
            shop.path,
            isolation_level=level,
            detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES,
            factory=type("Odd", (sqlite3.Connection,), {"cursor": None}),
        )
        for name in ("INTEGER", "TEXT", "BLOB"):
            sqlite3.register_converter(name, _refuse_to_convert)
        try:
            db.row_factory = _refuse_to_convert
            db.text_factory = _refuse_to_convert
            sqlite3.Cursor(db).execute("CREATE TEMP TABLE jobs (mine)")
            sqlite3.Cursor(db).execute("BEGIN IMMEDIATE")
            same = shop.engine.submit(shop.flow, {"order": 1}, connection=db)
            assert (same.id, same.created, same.submitter) == (first.id, False, "ada")
            shop.engine.submit(shop.flow, {"order": level}, connection=db)
            db.commit()
            assert db.isolation_level == level
            assert db.row_factory is db.text_factory is _refuse_to_convert
        finally:
            sqlite3.converters.clear()
            db.close()
    assert len(shop.engine.jobs()) == 4
    assert shop.engine.inspect.verify() == []


@pytest.mark.shows("E-33")
def test_the_row_factory_of_an_asynchronous_connection_does_not_matter(shop: Shop) -> None:
    with closing(on_sqlite("aiosqlite", shop.path)) as mine:
        mine.connection.row_factory = _refuse_to_convert
        mine.order(1)
        job = mine.submit(shop.engine, shop.flow, {"order": 1})
        assert mine.submit(shop.engine, shop.flow, {"order": 1}).id == job.id
        mine.commit()
        assert mine.connection.row_factory is _refuse_to_convert
    assert shop.engine.inspect.verify() == []


def _refuse_to_convert(*_: object) -> object:
    raise AssertionError("the caller's own way of reading was used")


@pytest.mark.shows("E-33")
def test_nothing_but_plain_statements_is_run(shop: Shop) -> None:
    with closing(sqlite3.connect(shop.path)) as db:
        db.execute("BEGIN IMMEDIATE")
        said: list[str] = []
        db.set_trace_callback(said.append)
        shop.engine.submit(shop.flow, {"order": 1}, connection=db)
        shop.engine.submit(shop.flow, {"order": 1}, connection=db)
        db.set_trace_callback(None)
        # SQLite tells in a comment what a table-valued function runs.
        own = [line for line in said if not line.startswith("--")]
        assert {line.split()[0] for line in own} == {"SELECT", "INSERT"}
        assert db.in_transaction
        db.rollback()


@pytest.mark.shows("E-33")
def test_neither_sqlalchemy_nor_a_driver_is_imported_for_a_caller(tmp_path: Path) -> None:
    program = f"""
import sqlite3, sys, ulak
engine = ulak.connect("sqlite:///{tmp_path}/jobs.db")
@engine.job
def hello(): ...
with engine:
    db = sqlite3.connect("{tmp_path}/jobs.db")
    db.execute("BEGIN IMMEDIATE")
    engine.submit(hello, connection=db)
    db.commit()
    db.close()
print([name for name in ("sqlalchemy", "aiosqlite", "psycopg") if name in sys.modules])
"""
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert child.stdout == "[]\n"


# --- what is refused, with what works -------------------------------------------------


@each_kind
@pytest.mark.shows("E-33")
def test_a_transaction_that_has_not_begun_as_a_write_is_refused(shop: Shop, mine: Caller) -> None:
    with pytest.raises(BadInput, match=BEGUN_AS_A_WRITE):
        mine.submit(shop.engine, shop.flow, {"order": 1})
    mine.execute("SELECT * FROM orders")
    with pytest.raises(BadInput, match=BEGUN_AS_A_WRITE):
        mine.submit(shop.engine, shop.flow, {"order": 1})
    mine.commit()
    assert shop.is_untouched()
    mine.order(1)
    assert mine.submit(shop.engine, shop.flow, {"order": 1}).created
    mine.commit()


@pytest.mark.shows("E-33")
@pytest.mark.parametrize("has_read", [False, True])
def test_a_transaction_that_was_begun_to_read_is_refused(shop: Shop, has_read: bool) -> None:
    with closing(sqlite3.connect(shop.path)) as mine:
        mine.execute("BEGIN")
        if has_read:
            mine.execute("SELECT * FROM orders").fetchall()
        with pytest.raises(BadInput, match=BEGUN_AS_A_WRITE):
            shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        mine.commit()
    assert shop.is_untouched()


@pytest.mark.shows("E-33")
@pytest.mark.parametrize("has_read", [False, True])
def test_a_reader_is_refused_although_somebody_else_is_writing(shop: Shop, has_read: bool) -> None:
    with closing(sqlite3.connect(shop.path, timeout=0)) as mine:
        with closing(sqlite3.connect(shop.path)) as other:
            other.execute("INSERT INTO orders VALUES (9)")
            mine.execute("BEGIN")
            if has_read:
                mine.execute("SELECT * FROM orders").fetchall()
            with pytest.raises(BadInput, match=BEGUN_AS_A_WRITE) as refused:
                shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
            assert isinstance(refused.value.__cause__, sqlite3.OperationalError)
            other.rollback()
        mine.commit()
    assert shop.is_untouched()


@pytest.mark.shows("E-33")
def test_a_connection_that_is_not_in_a_transaction_is_refused(shop: Shop) -> None:
    mine = sqlite3.connect(shop.path, isolation_level=None)
    with closing(mine), pytest.raises(BadInput, match=BEGUN_AS_A_WRITE):
        shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
    assert shop.is_untouched()


@pytest.mark.shows("E-33")
@pytest.mark.parametrize("name", [":memory:", "other.db"])
def test_a_connection_to_another_file_is_refused(shop: Shop, tmp_path: Path, name: str) -> None:
    where = name if name == ":memory:" else tmp_path / name
    with closing(sqlite3.connect(where)) as mine:
        mine.execute(OWN_TABLE)
        mine.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(BadInput, match=r"a transaction is of one file"):
            shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        assert mine.in_transaction
    assert shop.is_untouched()


@pytest.mark.shows("E-33")
def test_what_is_no_connection_is_refused_with_what_works(shop: Shop) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{shop.path}")
    for odd in (object(), "sqlite:///shop.db", engine):
        with pytest.raises(BadInput, match=r"cannot be used here; give a sqlite3\.Connection"):
            shop.engine.submit(shop.flow, {"order": 1}, connection=odd)
        with pytest.raises(BadInput, match=r"cannot be used here; give a sqlite3\.Connection"):
            asyncio.run(shop.engine.aio.submit(shop.flow, {"order": 1}, connection=odd))
    assert shop.is_untouched()


@each_kind
@pytest.mark.shows("E-33")
def test_the_verb_must_go_with_the_connection(shop: Shop, mine: Caller) -> None:
    mine.order(1)
    if mine.is_async:
        with pytest.raises(BadInput, match=r"is asynchronous; await engine\.aio\.submit"):
            shop.engine.submit(shop.flow, {"order": 1}, connection=mine.connection)
    else:
        verb = shop.engine.aio.submit(shop.flow, {"order": 1}, connection=mine.connection)
        with pytest.raises(BadInput, match=r"would stop the event loop; .*engine\.submit"):
            asyncio.run(verb)
    mine.rollback()
    assert shop.is_untouched()


@pytest.mark.shows("E-33")
def test_an_engine_that_is_not_open_says_so_instead_of_waiting_for_its_caller(
    tmp_path: Path,
) -> None:
    flow = shipping()
    harness = Harness(flow, path=tmp_path / "shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as mine:
        mine.execute(OWN_TABLE)
        mine.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(BadInput, match=r"call engine\.open\(\)"):
            harness.engine.submit(flow, {"order": 1}, connection=mine)
