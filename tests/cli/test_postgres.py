"""Every command on PostgreSQL, and no word of a password."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import SHOP, Shop
from tests.conformance.stores import make_schema
from tests.databases import Databases
from ulak.store.postgres import migrations
from ulak.testing.servers import Postgres

PASSWORD = "s3cret/pa@ss:word"  # noqa: S105 - the one that nobody may ever read
ENCODED = "s3cret%2Fpa%40ss%3Aword"

BOOK = """
import datetime
engine.schedules.add("hourly", greet, "the hour", every=datetime.timedelta(hours=1))
"""


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    """A database with the schema in it, and a URL with a password that the server ignores."""
    with databases.lend(make_schema) as url:
        yield url.replace("postgres@", f"postgres:{ENCODED}@")


@pytest.fixture
def bare_url(postgres_url: str) -> str:
    return postgres_url.replace("postgres@", f"postgres:{ENCODED}@")


def shop_at(url: str, folder: Path, run, monkeypatch: pytest.MonkeyPatch) -> Shop:
    program = SHOP.replace("sqlite:///shop.db", url) + BOOK
    (folder / "shop.py").write_text(program)
    sys.path.insert(0, str(folder))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    import shop

    monkeypatch.setitem(sys.modules, "shop", shop)
    return Shop(folder, run)


@pytest.fixture
def pg_shop(url: str, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The program of the other tests, on PostgreSQL."""
    return shop_at(url, tmp_path, run, monkeypatch)


def is_silent(*texts: str) -> bool:
    """Tell whether nobody has said the password."""
    return not any(word in text for text in texts for word in (PASSWORD, ENCODED, "s3cret"))


def test_every_command_works_and_says_no_password(pg_shop: Shop) -> None:
    greeted = pg_shop.submit("greet", "ada")
    asked = pg_shop.submit("claim", {"who": "ada", "amount": 1, "iban": "x"})
    pg_shop.work()
    commands = [
        ("jobs", "list"), ("jobs", "list", "--json"), ("jobs", "show", greeted),
        ("jobs", "show", asked, "--json"), ("why", asked), ("flows",), ("verify",),
        ("verify", "--json"), ("migrate",), ("doctor",), ("doctor", "--json"),
        ("doctor", "--before-deploy"), ("outbox", "dead"), ("schedules", "list"),
        ("schedules", "show", "hourly"), ("prune", "--older-than", "0s"),
    ]  # fmt: skip
    for command in commands:
        answer = pg_shop.ulak(*command)
        assert answer.code == 0, (command, answer.err)
        assert is_silent(answer.out, answer.err), command
    decided = pg_shop.ulak("jobs", "decide", asked, "refuse", "--data", json.dumps({"grade": 1}))
    assert decided.code == 0, decided.err
    assert [job["id"] for job in pg_shop.ulak("jobs", "list", "--json").document["jobs"]] == [asked]


@pytest.mark.shows("E-63")
def test_verify_reports_what_is_damaged(pg_shop: Shop, url: str) -> None:
    job = pg_shop.submit("greet", "ada")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE ulak.jobs SET state = 'elsewhere'")
    found = pg_shop.ulak("verify", "--json")
    assert found.code == 1
    assert {finding["job_id"] for finding in found.document["findings"]} >= {job}


@pytest.mark.shows("E-55")
def test_doctor_tells_the_server_the_ring_and_the_months(pg_shop: Shop) -> None:
    found = pg_shop.ulak("doctor", "--json").document
    store = found["store"]
    assert store["name"] == "postgres"
    assert int(store["postgres"].split(".")[0]) >= migrations.OLDEST_SERVER
    assert (store["pooled"], store["ring"], store["synchronous_commit"]) == (False, True, "on")
    assert store["schema"] == migrations.NEWEST
    assert {202601, 202602, 202603} <= set(store["months"])
    assert not any("synchronous_commit" in note for note in found["notes"])
    said = pg_shop.ulak("doctor").out
    for word in (store["postgres"], store["database"], "202601, 202602"):
        assert word in said


def test_doctor_says_what_a_server_that_does_not_wait_may_lose(
    postgres_url: str, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    shop = shop_at(postgres_url, tmp_path, run, monkeypatch)
    assert shop.ulak("doctor", "--json").document["store"]["synchronous_commit"] == "off"
    said = " ".join(shop.ulak("doctor").out.split())
    assert "may be lost (jobs, moves, messages; three times wal_writer_delay" in said
    assert "SET synchronous_commit = on" in said


@pytest.mark.shows("E-55")
def test_behind_a_pooler_doctor_shows_no_ring(
    pooled_url: str, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_at(f"{pooled_url}?pooled=true", tmp_path, run, monkeypatch)
    found = shop.ulak("doctor", "--json").document
    assert (found["store"]["pooled"], found["store"]["ring"]) == (True, None)
    assert not any("ring" in note for note in found["notes"])


def test_migrate_creates_the_schema(
    bare_url: str, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_at(bare_url, tmp_path, run, monkeypatch)
    first = shop.ulak("migrate", "--json").document
    newest = migrations.NEWEST
    assert first == {"before": 0, "after": newest, "newest": newest}
    assert "nothing to do" in shop.ulak("migrate").out


@pytest.fixture
def clerk(postgres_url: str) -> Iterator[str]:
    """A role that may connect and nothing else; its URL."""
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE ROLE clerk LOGIN")
        yield postgres_url.replace("postgres@", "clerk@", 1)
        db.execute("DROP OWNED BY clerk")
        db.execute("DROP ROLE clerk")


def test_a_role_that_may_not_create_the_schema_is_told_who_may(
    clerk: str, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_at(clerk, tmp_path, run, monkeypatch)
    name = clerk.rpartition("/")[2]
    for command in ("migrate", "doctor"):
        answer = shop.ulak(command)
        assert answer.code == 1
        assert f"role clerk may not create or change the schema ulak in database {name}" in (
            answer.err
        )
        assert f"GRANT CREATE ON DATABASE {name} TO clerk" in answer.err


@pytest.mark.shows("E-55")
def test_a_role_that_may_only_read_and_write_works(
    clerk: str, postgres_url: str, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_schema(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("GRANT USAGE ON SCHEMA ulak TO clerk")
        db.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ulak TO clerk")
        # Its month is not there, and it may not make one: what it writes is in the last.
        for table in ("events", "payloads", "results"):
            month = time.strftime("%Y%m", time.gmtime())
            db.execute(f"DROP TABLE ulak.{table}_{month}")
    shop = shop_at(clerk, tmp_path, run, monkeypatch)
    job = shop.submit("greet", "ada")
    shop.work()
    assert shop.ulak("jobs", "show", job, "--json").document["state"] == "done"
    assert shop.ulak("verify").code == 0
    assert shop.ulak("prune", "--older-than", "0s").out.startswith("pruned 1 job")


@pytest.mark.shows("E-55")
def test_a_server_that_is_too_old_is_refused(
    pg_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "OLDEST_SERVER", 99)
    for command in ("doctor", "migrate"):
        answer = pg_shop.ulak(command)
        assert answer.code == 1
        assert "ulak needs 99 or newer; upgrade the server" in answer.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"postgresql://u:{ENCODED}@127.0.0.1:1/x", "PostgreSQL cannot be reached"),
        (f"postgresql://u:{PASSWORD}@127.0.0.1/x", "percent-encoded"),
        (f"postgresql://u:{ENCODED}@127.0.0.1/x?sslmode=perhaps", "cannot be reached"),
        (f"postgresql://u@127.0.0.1/x?password={ENCODED}&sslmod=no", "cannot be read"),
        (f"postgresql://u:{ENCODED}@127.0.0.1/x?pooled=1", "neither true nor false"),
        (f"mysql://u:{PASSWORD}@127.0.0.1/x", "names no store"),
        (f"host=127.0.0.1 password={ENCODED}", "names no store"),
    ],
)
def test_no_error_says_a_password(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    (tmp_path / "wrong.py").write_text(f"import ulak\nengine = ulak.connect({url!r})\n")
    for more in ([], ["--json"]):
        monkeypatch.delitem(sys.modules, "wrong", raising=False)
        answer = run("doctor", "-a", "wrong:engine", *more)
        assert answer.code == 1
        assert said in answer.err
        assert is_silent(answer.out, answer.err)


@pytest.fixture
def absent() -> Iterator[Postgres]:
    """A server that has not been started again."""
    with Postgres() as server:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("CREATE DATABASE shop")
        server.stop()
        yield server


@pytest.mark.shows("E-83", "E-58")
@pytest.mark.parametrize("command", [("worker",), ("up", "--port", "0")])
def test_what_starts_before_the_server_waits_for_it_and_says_so_once(
    command: tuple[str, ...], absent: Postgres, tmp_path: Path, run, monkeypatch
) -> None:
    shop = shop_at(absent.url("shop"), tmp_path, run, monkeypatch)
    process = shop.start(*command, "shop:engine")
    try:
        said = process.stderr.readline()
        assert "the store is away; waiting for it" in said
        assert "cannot be reached" in said
        absent.start()
        job = shop.submit("greet", "ada")
        import shop as program

        with program.engine as engine:
            assert engine.wait(job, timeout=timedelta(seconds=120)).state == "done"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    assert "drained" in out
    assert "the store is away" not in err


@pytest.mark.shows("E-83")
def test_a_worker_whom_the_server_refuses_ends_with_the_reason(
    url: str, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_at(f"{url.rpartition('/')[0]}/nowhere", tmp_path, run, monkeypatch)
    process = shop.start("worker", "shop:engine")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert 'database "nowhere" does not exist' in err
    assert is_silent(out, err)


def test_up_and_worker_serve_and_drain(pg_shop: Shop, url: str) -> None:
    job = pg_shop.submit("greet", "ada")
    import shop

    started = [
        pg_shop.start("worker", "shop:engine"),
        pg_shop.start("up", "shop:engine", "--port", "0"),
    ]
    try:
        with shop.engine as engine:
            engine.wait(job, timeout=shop.ulak.WorkerSettings().lease)
            deadline = time.monotonic() + 30
            while len(engine.store.workers()) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert len(engine.store.workers()) == 2
            assert engine.get(job).state == "done"
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        said = [text for process in started for text in process.communicate(timeout=30)]
    assert [process.returncode for process in started] == [0, 0], said
    assert is_silent(*said)
    assert any(f"{url.rpartition('@')[2]}, nothing that was acknowledged" in text for text in said)
