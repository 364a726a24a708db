"""A lone job is written in one round trip, and is whole or not there all the same."""

import threading
from typing import Any

import psycopg
import pytest
from psycopg.pq import PipelineStatus

import ulak
from tests.unit.store.postgres.conftest import store_at
from ulak.errors import StoreError
from ulak.ids import from_text
from ulak.store.postgres import PostgresStore
from ulak.testing import faults

TABLES = ("jobs", "payloads", "events", "count_deltas")


def flow() -> ulak.Flow[Any]:
    async def nothing(run: ulak.Run[Any]) -> None: ...

    return ulak.Flow.steps("lone", ("work", nothing))


def submit(reached: str) -> None:
    """Runs in a child that is killed."""
    work = flow()
    with ulak.Engine(store_at(reached), flows=[work]) as engine:
        print(engine.submit(work, {"n": 1}).id, flush=True)  # noqa: T201 - the child's way to tell


def stored(url: str) -> list[int]:
    with psycopg.connect(url) as db:
        return [db.execute(f"SELECT count(*) FROM ulak.{t}").fetchone()[0] for t in TABLES]  # type: ignore[index]  # noqa: S608 - our own tables


@pytest.mark.shows("E-61")
@pytest.mark.parametrize(
    ("point", "rows"), [("add.before", 0), ("add.inside", 0), ("add.after", 1)]
)
def test_a_submitter_killed_at_any_point_leaves_a_whole_job_or_none(
    reached: str, url: str, point: str, rows: int
) -> None:
    assert faults.run(submit, reached, kill_at=point).killed
    with psycopg.connect(url) as db:
        # The server needs a moment to notice that its client is gone.
        db.execute("LOCK TABLE ulak.jobs, ulak.payloads, ulak.events, ulak.count_deltas")
    assert stored(url) == [rows] * 4


@pytest.mark.shows("E-20")
def test_a_lone_job_whose_answer_was_lost_is_recognised(store: PostgresStore, url: str) -> None:
    work = flow()
    new = ulak.Engine(store, flows=[work]).prepare(work, {"n": 1})
    first, again = store.add([new]), store.add([new])
    assert again == first
    assert again[0].created
    assert stored(url) == [1] * 4


def test_a_commit_that_the_server_refuses_is_no_success(store: PostgresStore, url: str) -> None:
    work = flow()
    engine = ulak.Engine(store, flows=[work])
    first, second = (engine.prepare(work, {"n": n}) for n in range(2))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("ALTER TABLE ulak.jobs ADD CONSTRAINT late UNIQUE (flow) INITIALLY DEFERRED")
        try:
            store.add([first])
            with pytest.raises(StoreError):
                store.add([second])
        finally:
            db.execute("ALTER TABLE ulak.jobs DROP CONSTRAINT late")
    assert store.find_job(second.row.id) is None
    assert stored(url) == [1] * 4


def test_a_lone_submit_waits_for_the_server_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = flow()
    said: list[tuple[str, bool]] = []
    cursor = psycopg.Cursor.execute

    def execute(self: Any, query: Any, *given: Any, **options: Any) -> Any:
        if threading.current_thread() is threading.main_thread():  # not the listener
            waits = self.connection.pgconn.pipeline_status == PipelineStatus.OFF
            said.append((query.split()[0], waits))
        return cursor(self, query, *given, **options)

    with ulak.Engine(store_at(url), flows=[work]) as engine:
        monkeypatch.setattr(psycopg.Cursor, "execute", execute)
        job = engine.submit(work, {"n": 1})
        assert said == [("BEGIN", False), ("WITH", False), ("COMMIT", False)]
        assert engine.store.find_job(from_text(job.id)) is not None
