"""PostgreSQL goes away and comes back under an engine that works: killed, cut off, silent, full."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

import ulak
import ulak.web
from tests.scenario.doubles import Double, engine_on, eventually, settings
from ulak.engine.engine import Engine
from ulak.errors import StoreError
from ulak.store.postgres import PostgresStore
from ulak.store.postgres.pipeline import Pipeline
from ulak.testing.servers import ROLE, Postgres
from ulak.web.routes import health
from ulak.wiring import store_of

PARTS = ("add", "claim", "commit", "renew")
OTHERS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'ulak'"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that tests may kill; it has one more connection than they use at most."""
    with Postgres(settings={"max_connections": 60}) as server:
        yield server


@pytest.fixture
def url(own_url: str) -> str:
    """The URL of an empty database, which goes with the server."""
    return own_url


class Load:
    """An engine with a worker, to which two threads submit jobs until it is stopped."""

    def __init__(self, url: str) -> None:
        self.flow: ulak.Flow[Any] = ulak.Flow("load", ulak.Lifecycle("go", {"go": ["done"]}))
        self.ran = 0
        self.accepted: list[str] = []
        self.answered: dict[str, list[float]] = {verb: [] for verb in PARTS}
        self.stopped = threading.Event()
        self.store = Double(store_of(url))
        for verb in PARTS:
            self.store.after[verb] = self._note(self.answered[verb])
        self.engine = engine_on(self.store, self.flow)

        @self.flow.stage("go")
        async def go(run: ulak.Run[Any]) -> None:
            self.ran += 1

    def _note(self, times: list[float]) -> Any:
        return lambda answer: times.append(time.monotonic())

    def _submit(self) -> None:
        while not self.stopped.is_set():
            jobs = self.engine.submit_many(self.flow, range(20))
            self.accepted += [job.id for job in jobs]
            while len(self.accepted) > self.ran + 500 and not self.stopped.is_set():
                time.sleep(0.01)

    @contextmanager
    def running(self) -> Iterator[Engine]:
        """Work for as long as the block lasts, then until everything has ended; check it all."""
        threads = [threading.Thread(target=self._submit) for _ in range(2)]
        with self.engine, self.engine.working(settings(loop=100, poll=1.0)):
            for thread in threads:
                thread.start()
            try:
                eventually(lambda: self.ran > 100)
                yield self.engine
            finally:
                self.stopped.set()
                for thread in threads:
                    thread.join()
            eventually(lambda: self._states().keys() == {"done"}, within_s=60)
        with self.engine:
            assert self._states() == {"done": len(self.accepted)}, "nothing is lost or twice"
            assert self.engine.inspect.verify() == []

    def _states(self) -> dict[str, int]:
        return {count.state: count.jobs for count in self.engine.inspect.counts()}

    def goes_on(self) -> bool:
        """Wait until much has been done from now on."""
        before = self.ran
        eventually(lambda: self.ran > before + 200)
        return True


class Readiness:
    """Asks `/health/ready` as an orchestrator does, on a loop that goes on between questions."""

    def __init__(self, engine: Engine) -> None:
        self._app = ulak.web.app(engine, identity=None)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Readiness":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def ask(self) -> tuple[int, str]:
        """Return the status, and what is said to be wrong."""
        answer = asyncio.run_coroutine_threadsafe(self._get(), self._loop).result(120)
        return answer.status_code, answer.json().get("detail", "")

    async def _get(self) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            return await client.get("/health/ready")


@pytest.mark.shows("E-58", "E-20")
def test_a_killed_server_that_comes_back_finds_everything_as_it_was(
    server: Postgres, url: str
) -> None:
    """Broken by a part that pauses for seconds after a failure, or needs a restart."""
    load = Load(url)
    with load.running() as engine, Readiness(engine) as ready:
        assert ready.ask() == (200, "")
        server.kill()
        killed_at = time.monotonic()
        assert ready.ask()[0] == 503
        time.sleep(1.5)
        server.start()
        back_at = time.monotonic()
        eventually(lambda: all(times[-1] > killed_at for times in load.answered.values()))
        firsts = [min(t for t in times if t > killed_at) for times in load.answered.values()]
        late_s, spread_s = min(firsts) - back_at, max(firsts) - min(firsts)
        print(f"first answer after {late_s:.2f} s, all parts {spread_s:.2f} s later")  # noqa: T201
        # A few hundred milliseconds on a machine that does nothing else.
        assert spread_s < 1.5
        assert load.goes_on()
        eventually(lambda: ready.ask() == (200, ""))


@pytest.mark.shows("E-58", "E-20")
def test_connections_that_are_ended_one_by_one_cost_nothing(url: str) -> None:
    load = Load(url)
    with load.running(), psycopg.connect(url, autocommit=True) as admin:
        for _ in range(30):
            for (pid,) in admin.execute(OTHERS).fetchall()[:2]:
                admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
            time.sleep(0.02)
        assert load.goes_on()


@pytest.mark.shows("E-20", "E-58")
@pytest.mark.parametrize("written", [True, False])
def test_a_connection_lost_at_the_very_commit_is_looked_up(
    written: bool, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken by a committer that repeats without looking, or takes the loss for a refusal."""
    end, lost = Pipeline.__exit__, list[str]()

    def lose(pipeline: Any, *raised: Any) -> None:
        who = threading.current_thread().name
        if raised[0] is None and who == "ulak-committer" and len(lost) < 5:
            lost.append(who)
            if written:
                end(pipeline, *raised)
            pipeline._connection.close()
            raise psycopg.OperationalError("the connection is lost")
        end(pipeline, *raised)

    load = Load(url)
    monkeypatch.setattr(Pipeline, "__exit__", lose)
    with load.running():
        eventually(lambda: len(lost) == 5)
        assert load.goes_on()
    assert load.store.calls["find_commits"] >= 5


@pytest.mark.shows("E-58")
def test_a_server_that_falls_silent_is_waited_for(
    server: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE_S", 2.0)
    load = Load(url)
    with load.running() as engine, Readiness(engine) as ready:
        assert ready.ask() == (200, "")
        with server.frozen():
            assert ready.ask() == (503, "the store has not answered within 2 s")
        assert load.goes_on()
        eventually(lambda: ready.ask() == (200, ""))


@pytest.mark.shows("E-58")
def test_a_server_with_too_many_connections_is_asked_again(url: str) -> None:
    load = Load(url)
    others: list[psycopg.Connection] = []
    with load.running(), psycopg.connect(url, autocommit=True) as admin:
        others += _connected(url)
        assert len(others) > 20
        for (pid,) in admin.execute(OTHERS).fetchall():
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        others += _connected(url)
        for other in others:
            other.close()
        assert load.goes_on()


def _connected(url: str) -> list[psycopg.Connection]:
    """Take every place that is free, as far as nobody is faster."""
    taken = []
    while True:
        try:
            taken.append(psycopg.connect(url))
        except psycopg.OperationalError:
            return taken


# --- what cannot work says why --------------------------------------------------------


def test_what_stands_in_the_way_is_named_and_the_password_is_not(
    server: Postgres, tmp_path: Path
) -> None:
    rules = server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all ada 127.0.0.1/32 scram-sha-256\n{before}")
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute("CREATE ROLE ada LOGIN PASSWORD 'right'")
        admin.execute("CREATE ROLE bob LOGIN")
        admin.execute("SELECT pg_reload_conf()")
        said = "password authentication failed for user"
        eventually(lambda: said in _complaint(server, "ada:sesame"))
        assert "sesame" not in _complaint(server, "ada:sesame")
        assert 'database "nowhere" does not exist' in _complaint(server, ROLE, "nowhere")
        assert "bob may not" in _complaint(server, "bob")
        rules.write_text(before)
        admin.execute("SELECT pg_reload_conf()")
    with pytest.raises(StoreError, match=r"cannot be reached: .*refused"):
        PostgresStore("postgresql://ada:sesame@127.0.0.1:1/postgres").open()


def _complaint(server: Postgres, who: str, database: str = "postgres") -> str:
    store = PostgresStore(f"postgresql://{who}@127.0.0.1:{server.port}/{database}")
    try:
        store.open()
    except StoreError as error:
        return str(error)
    store.close()
    return ""


def test_an_old_server_is_refused_by_its_version(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", 130_012)
    for use in (PostgresStore(url).open, PostgresStore(url).migrate):
        with pytest.raises(StoreError, match=r"PostgreSQL 13\.12, ulak needs 14 or newer"):
            use()
