"""A refused job leaves a caller's own transaction as it was; stops may be part of one."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conformance.stores import make_schema
from tests.scenario.callers import OWN_TABLE, Caller, on_postgres, on_sqlite
from tests.scenario.test_admission import CODE, mail, only_small
from ulak import Engine, Overloaded
from ulak.errors import NotSupported, UnknownName
from ulak.testing import Harness


@pytest.fixture(
    params=["sqlite3", "aiosqlite", "AsyncSession", "psycopg", "psycopg async", "Session"]
)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Engine, Caller]]:
    """A program with a table of its own in the database of its jobs, and a connection to it."""
    flows = (mail(max_waiting=2), mail("other"), mail("judged", admission=only_small))
    if request.param in ("sqlite3", "aiosqlite", "AsyncSession"):
        path = tmp_path / "house.db"
        with Harness(*flows, path=path) as harness:
            with closing(sqlite3.connect(path)) as db:
                db.execute(OWN_TABLE)
            harness.engine.open()
            mine = on_sqlite(request.param, path)
            yield harness.engine, mine
            mine.close()
        return
    with (
        request.getfixturevalue("databases").lend(make_schema) as url,
        Harness(*flows, url=url) as harness,
    ):
        with psycopg.connect(url) as db:
            db.execute(OWN_TABLE)
        harness.engine.open()
        mine = on_postgres(request.param, url)
        yield harness.engine, mine
        mine.close()


def orders(mine: Caller) -> int:
    rows = mine.execute("SELECT count(*) FROM orders")
    return int(mine.do(rows.fetchone())[0])


def steer(engine: Engine, mine: Caller, verb: str, *arguments: Any, **options: Any) -> Any:
    control = engine.aio.flow_control if mine.is_async else engine.flow_control
    return mine.do(getattr(control, verb)(*arguments, connection=mine.connection, **options))


@pytest.mark.shows("E-73", "E-33")
def test_a_caller_goes_on_without_a_job_that_is_refused(house: tuple[Engine, Caller]) -> None:
    engine, mine = house
    flow, other, judged = engine.inspect.flows
    engine.flow_control.stop_accepting("other", actor="ada")
    mine.order(1)
    for n in range(2):
        assert mine.submit(engine, flow, {"n": n}).created
    for refused, n in ((flow, 2), (other, 1), (judged, 10)):
        with pytest.raises(Overloaded) as no:
            mine.submit(engine, refused, {"n": n})
        assert no.value.code == CODE
    assert not mine.submit(engine, flow, {"n": 1}).created
    assert mine.submit(engine, judged, {"n": 9}).created
    mine.commit()
    assert orders(mine) == 1
    mine.rollback()
    assert sorted(job.flow for job in engine.jobs()) == ["judged", "mail", "mail"]
    assert engine.inspect.verify() == []


@pytest.mark.shows("E-73")
def test_a_stop_is_part_of_the_callers_transaction(house: tuple[Engine, Caller]) -> None:
    engine, mine = house
    other = engine.inspect.flows[1]
    mine.order(1)
    stop = steer(engine, mine, "stop_accepting", "other", actor="ada", retry_after=3)
    mine.rollback()
    assert engine.flow_control.stops() == []
    mine.order(1)
    steer(engine, mine, "stop_accepting", "other", actor="ada", retry_after=3)
    mine.commit()
    (stored,) = engine.flow_control.stops()
    assert (stored.flow, stored.retry_after) == (stop.flow, stop.retry_after)
    with pytest.raises(Overloaded):
        engine.submit(other, {"n": 1})
    mine.order(2)
    assert steer(engine, mine, "accept", "other", actor="ada") == stored
    mine.commit()
    assert engine.submit(other, {"n": 1}).created
    mine.order(3)
    with pytest.raises(UnknownName):
        steer(engine, mine, "accept", "other", actor="ada")
    mine.rollback()


@pytest.mark.shows("E-73")
def test_a_store_without_callers_transactions_names_the_cure() -> None:
    with Harness(mail()) as harness, pytest.raises(NotSupported, match="leave connection= out"):
        harness.engine.flow_control.stop_accepting("mail", actor="ada", connection=object())
