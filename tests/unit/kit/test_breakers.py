"""Circuit breakers, with the table that the page of their module has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest

from ulak import Engine, Stopped
from ulak.clock import ManualClock
from ulak.errors import BadInput, StoreError
from ulak.kit import breakers
from ulak.kit.breakers import CircuitBreaker
from ulak.tables import Schema, Tables
from ulak.wiring import store_of

TABLE = dedent((breakers.__doc__ or "").partition("makes:\n")[2])
MINUTE = timedelta(minutes=1)


class JamError(Exception):
    code = "jam"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tables(tmp_path: Path, clock: ManualClock) -> Iterator[Tables]:
    (tmp_path / "sql").mkdir()
    more = "INSERT INTO {schema}.acme_breakers (name) VALUES ('stapler');"
    (tmp_path / "sql" / "0001.sql").write_text(f"{TABLE}\n{more}")
    engine = Engine(store_of(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock))
    yield Tables(
        engine,
        Schema("letters", folder=tmp_path / "sql", version_table="acme_schema", why="a test"),
    )
    engine.close()


def test_failures_and_rest_are_those_of_the_breaker_and_others_are_left_alone(
    tables: Tables, clock: ManualClock
) -> None:
    printer = CircuitBreaker(tables, "acme_breakers", "printer", failures=2, rest=MINUTE)
    stapler = CircuitBreaker(tables, "acme_breakers", "stapler")
    printer.failed("a/1/print", "jam", "paper")
    assert printer.may_start("b/1/print") is None
    printer.failed("b/1/print", "jam", "paper")
    assert printer.may_start("c/1/print") == MINUTE
    assert stapler.may_start("c/1/staple") is None
    assert stapler.describe()["runs"] == 0
    clock.advance(MINUTE)
    assert printer.may_start("c/1/print") is None
    assert printer.describe()["breaker"]["probe"] == "c/1/print"
    assert stapler.describe()["breaker"]["probe"] is None
    for verb in (lambda: stapler.reset("ada"), lambda: stapler.succeeded("d/1/staple")):
        verb()
        assert printer.describe()["breaker"]["state"] == "half-open"
    printer.reset("ada")
    assert printer.describe()["breaker"]["state"] == "closed"


def test_a_run_is_counted_by_the_end_of_its_block(tables: Tables) -> None:
    breaker = CircuitBreaker(tables, "acme_breakers", "printer")

    async def run(key: str, error: BaseException | None = None) -> None:
        async with breaker.counting(key, JamError):
            if error is not None:
                raise error

    asyncio.run(run("a/1/print"))
    with pytest.raises(JamError):
        asyncio.run(run("b/1/print", JamError("the paper is stuck")))
    told = breaker.describe()
    assert (told["runs"], told["failed_runs"], told["breaker"]["failures"]) == (2, 1, 1)
    assert (told["last_code"], told["last_message"]) == ("jam", "the paper is stuck")
    for error in (ZeroDivisionError(), Stopped()):
        with pytest.raises(type(error)):
            asyncio.run(run("c/1/print", error))
    assert breaker.describe() == told, "these say nothing of the printer"


def test_a_table_that_is_no_plain_name_is_refused(tables: Tables) -> None:
    with pytest.raises(BadInput, match="cannot be the table of a breaker"):
        CircuitBreaker(tables, "acme; DROP", "printer")


def test_a_run_that_cannot_be_counted_has_ended_all_the_same(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    breaker = CircuitBreaker(tables, "acme_breakers", "printer")

    def fail(*_: object) -> bool:
        raise StoreError("the store is away")

    async def run(error: BaseException | None = None) -> str:
        async with breaker.counting("a/1/print", JamError):
            if error is not None:
                raise error
        return "printed"

    monkeypatch.setattr(tables, "write", fail)
    assert asyncio.run(run()) == "printed"
    with pytest.raises(JamError):
        asyncio.run(run(JamError("the paper is stuck")))
    assert [line.message for line in caplog.records] == ["the end of a run was not counted"] * 2
