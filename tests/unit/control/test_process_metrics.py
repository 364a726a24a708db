"""What processes count is published to a table, and added up by the main process of a command."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.places import place_of
from ulak import Engine
from ulak.clock import ManualClock
from ulak.control import process_metrics
from ulak.control.instruments import Instruments
from ulak.control.process_metrics import (
    Children,
    ProcessMetrics,
    Publisher,
    is_published,
    make_process_id,
)
from ulak.control.tallies import ALONE, Counter, Family, Gauge, Histogram
from ulak.errors import StoreError
from ulak.wiring import store_of

AMPLE_S = 60.0


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine on a clock that is turned by hand."""
    with place_of(request.param, request, tmp_path) as where:
        url = where if request.param == "postgres" else f"sqlite:///{where}"
        with Engine(store_of(url, clock=ManualClock())) as made:
            yield made


class Process:
    """What one process counts, and its publisher."""

    def __init__(self, engine: Engine, name: str, supervisor: str | None = None) -> None:
        self.runs = Counter("ulak_runs", "Runs.", ("flow",))
        self.running = Gauge("ulak_running", "Now.")
        self.seconds = Histogram("ulak_seconds", "Long.", (1, 5), ("flow",))
        self.publisher = Publisher(engine, self.read, process=name, supervisor=supervisor)

    def read(self) -> list[Family]:
        return [self.runs.read(), self.running.read(), self.seconds.read()]

    def publish(self) -> None:
        self.publisher.publish()


def turn(engine: Engine, **span: float) -> None:
    clock = engine.store.clock
    assert isinstance(clock, ManualClock)
    clock.advance(timedelta(**span))


def shown(engine: Engine, process: str = "m") -> dict[str, Any]:
    """The series of the children of a main process."""
    children = Children(engine, process)
    children.look()
    return {name: dict(family.series) for name, family in children.read().items()}


def test_what_is_published_is_read_as_it_was_by_any_process(engine: Engine) -> None:
    process = Process(engine, "m")
    process.runs.add(("greet",), 3)
    process.seconds.observe(("greet",), [0.5, 3, 9])
    process.running.add(2)
    process.publish()
    rows = ProcessMetrics(engine).read()
    assert {row.process for row in rows} == {"m"}
    assert {row.family.name: row.family for row in rows} == {f.name: f for f in process.read()}
    assert {row.at for row in rows} == {engine.store.clock.now()}


def test_the_data_is_plain_json_with_labels(engine: Engine) -> None:
    process = Process(engine, "m")
    process.runs.add(("greet",), 3)
    process.seconds.observe(("greet",), [0.5, 3, 9])
    process.publish()
    schema = "ulak." if engine.store.features.dialect == "postgresql" else ""
    with engine.reading() as db:
        rows = db.execute(
            f"SELECT family, supervisor, kind, data FROM {schema}process_metrics"  # noqa: S608
        ).fetchall()
    found = {
        family: (supervisor, kind, json.loads(data)) for family, supervisor, kind, data in rows
    }
    assert found["ulak_runs"] == (
        "m", "counter", {"labels": ["flow"], "bounds": [], "series": [[["greet"], [3.0]]]},
    )  # fmt: skip
    assert found["ulak_seconds"] == (
        "m", "histogram",
        {"labels": ["flow"], "bounds": [1, 5], "series": [[["greet"], [1, 1, 1, 12.5]]]},
    )  # fmt: skip
    assert found["ulak_running"][1] == "gauge"


def test_children_are_added_up_and_others_are_not(engine: Engine) -> None:
    for name, supervisor in (("m", None), ("m/worker-1", "m"), ("m/worker-2", "m"), ("o/w", "o")):
        process = Process(engine, name, supervisor)
        process.runs.add(("greet",))
        process.seconds.observe(("greet",), [3])
        process.running.add(1)
        process.publish()
    assert shown(engine) == {
        "ulak_runs": {("greet",): (2,)},
        "ulak_seconds": {("greet",): (0, 2, 0, 6)},
        "ulak_running": {ALONE: (2,)},
    }


def test_a_child_goes_on_with_the_counters_of_the_one_before(engine: Engine) -> None:
    for n in (1, 2):  # two lives of one child
        process = Process(engine, "m/worker-1", "m")
        process.running.add(n)
        process.runs.add(("greet",), 3)
        process.publish()
        process.seconds.observe(("greet",), [3])
        process.publish()
    found = shown(engine)
    assert found["ulak_runs"] == {("greet",): (6,)}
    assert found["ulak_seconds"] == {("greet",): (0, 2, 0, 6)}
    assert found["ulak_running"] == {ALONE: (2,)}, "a gauge stands as it does now"


def test_nothing_is_taken_from_a_counter_by_a_store_that_is_away_or_a_row_that_is_gone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, children = Process(engine, "m/worker-1", "m"), Children(engine, "m")
    child.runs.add(("greet",), 3)
    child.publish()
    children.look()

    def fail() -> None:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as away:
        away.setattr(engine, "reading", fail)
        with pytest.raises(StoreError):
            children.look()
        assert children.read()["ulak_runs"].series == {("greet",): (3,)}
    remove_all(engine)
    children.look()
    assert children.read()["ulak_runs"].series == {("greet",): (3,)}
    child.runs.add(("greet",))
    child.publish()
    children.look()
    assert children.read()["ulak_runs"].series == {("greet",): (4,)}
    assert {row.family.name for row in ProcessMetrics(engine).read()} == {
        family.name for family in child.read()
    }, "what has not changed is there again too"


def remove_all(engine: Engine) -> None:
    schema = "ulak." if engine.store.features.dialect == "postgresql" else ""
    with engine.transaction() as db:
        db.execute(f"DELETE FROM {schema}process_metrics")  # noqa: S608


def test_a_gauge_of_a_process_that_is_silent_is_nobodys(engine: Engine) -> None:
    silent, alive = Process(engine, "m/worker-1", "m"), Process(engine, "m/worker-2", "m")
    for process in (silent, alive):
        process.running.add(1)
        process.runs.add(("greet",))
        process.publish()
    turn(engine, seconds=61)
    alive.running.add(4)
    alive.publish()
    found = shown(engine)
    assert found["ulak_running"] == {ALONE: (5,)}
    assert found["ulak_runs"] == {("greet",): (2,)}


def test_who_has_nothing_new_to_say_writes_seldom(engine: Engine) -> None:
    process = Process(engine, "m")
    written: list[float] = []
    for _ in range(13):
        process.publish()
        written += {row.at for row in ProcessMetrics(engine).read()} - set(written)
        turn(engine, seconds=process_metrics.EVERY_S)
    assert len(written) == 4, "once in 20 s, of a minute"


def test_rows_of_main_processes_long_gone_are_removed_with_those_of_their_children(
    engine: Engine,
) -> None:
    for main in ("gone", "alive"):
        for name, supervisor in ((main, None), (f"{main}/worker-1", main)):
            process = Process(engine, name, supervisor)
            process.runs.add(("greet",), 2)
            process.publish()
    turn(engine, hours=23)
    Process(engine, "alive").publish()
    turn(engine, hours=2)
    Process(engine, "new").publish()
    assert {row.process for row in ProcessMetrics(engine).read()} == {
        "alive", "alive/worker-1", "new",
    }  # fmt: skip
    assert shown(engine, "alive")["ulak_runs"] == {("greet",): (2,)}, "a silent child still counts"


def test_no_worker_is_woken_by_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    process, rings, store = Process(engine, "m"), [], engine.store
    process.publish()  # the table is made
    bell: tuple[Any, str] = (store, "_ring")
    if store.features.dialect == "postgresql":
        bell = store._db, "tell"
    monkeypatch.setattr(*bell, lambda *_: rings.append(1))
    process.runs.add(("greet",))
    process.publish()
    ProcessMetrics(engine).clear()
    assert rings == []
    remove_all(engine)
    assert rings, "by any other transaction it is"


def test_what_another_release_counts_in_another_way_is_left_out() -> None:
    mine = Family("ulak_seconds", "histogram", ("flow",), {("a",): (1, 2, 3.0)}, (1,))
    other = Family("ulak_seconds", "histogram", ("flow",), {("a",): (1, 1, 1, 9.0)}, (1, 5))
    assert mine.plus(other) == mine
    assert mine.plus(mine).series == {("a",): (2, 4, 6.0)}
    assert mine.plus(None) is mine


# --- a store that does not answer ---------------------------------------------------------


@contextmanager
def hanging(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let every transaction of the engine's own hang until the block ends; set when one does."""
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(**_: object) -> None:
        hangs.set()
        goes_on.wait(AMPLE_S)
        raise StoreError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "transaction", hang)
        patch.setattr(engine, "reading", hang)
        try:
            yield hangs
        finally:
            goes_on.set()


def test_a_store_that_hangs_holds_up_neither_the_worker_nor_its_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @engine.job
    def greet(name: str) -> str:
        return f"hello {name}"

    instruments = Instruments(engine)
    engine.kernel.telemetry.add(instruments)
    monkeypatch.setattr(process_metrics, "LAST_S", 0.05)
    publisher = Publisher(engine, instruments.read, process="m")
    with hanging(engine, monkeypatch) as hangs:
        publisher.start()
        assert hangs.wait(AMPLE_S)
        with engine.working():
            job = engine.submit(greet, "ada")
            assert engine.wait(job.id, timeout=timedelta(seconds=AMPLE_S)).state == "done"
        publisher.stop()
        assert publisher._thread.is_alive(), "it was not waited for"
    publisher._thread.join(AMPLE_S)


def test_a_store_that_comes_back_hears_everything_and_the_log_one_line(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process(engine, "m")

    def fail(**_: object) -> None:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as away:
        away.setattr(engine, "transaction", fail)
        for _ in range(3):
            process.runs.add(("greet",))
            process.publisher._try()
    (line,) = [r for r in caplog.records if r.name == "ulak.metrics"]
    assert (line.levelname, line.publisher, line.error) == ("WARNING", "m", "the disk is gone")
    process.publisher._try()
    found = {row.family.name: row.family for row in ProcessMetrics(engine).read()}
    assert found["ulak_runs"].series == {("greet",): (3,)}


def test_the_last_numbers_are_published_at_the_end(engine: Engine) -> None:
    process = Process(engine, "m")
    process.publisher.start()
    process.runs.add(("greet",), 7)
    process.publisher.stop()
    found = {row.family.name: row.family for row in ProcessMetrics(engine).read()}
    assert found["ulak_runs"].series == {("greet",): (7,)}


def test_a_store_that_nobody_else_sees_has_no_place_for_them() -> None:
    import ulak

    assert not is_published(ulak.connect("memory://"))
    assert make_process_id() != make_process_id()
