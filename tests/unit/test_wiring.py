"""One URL chooses the store; what it says reaches the store as it was written."""

import re
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import ulak
from ulak.clock import ManualClock
from ulak.store.memory import MemoryStore
from ulak.store.postgres import PostgresStore
from ulak.store.sqlite import SqliteStore
from ulak.wiring import store_of

WHERE = "postgresql://ada@db.example/jobs"


def words(url: str) -> dict[str, Any]:
    """What libpq understands of a URL that was given to us."""
    store = store_of(url)
    assert isinstance(store, PostgresStore)
    return conninfo_to_dict(store._conninfo)


def test_each_scheme_has_its_store_and_takes_a_clock(tmp_path: Path) -> None:
    kinds = {
        "memory://": MemoryStore,
        f"sqlite:///{tmp_path}/x.db": SqliteStore,
        WHERE: PostgresStore,
    }
    for url, kind in kinds.items():
        clock = ManualClock()
        store = store_of(url, clock=clock)
        assert isinstance(store, kind)
        assert store.clock is clock


@pytest.mark.shows("E-55")
@pytest.mark.parametrize(
    ("query", "pooled"),
    [("", False), ("?pooled=true", True), ("?pooled=false", False), ("?x&pooled=true", True)],
)
def test_pooled_is_ours_and_libpq_never_sees_it(query: str, pooled: bool) -> None:
    store: Any = store_of(WHERE + query.replace("x", "sslmode=require"))
    assert store._pooled is pooled
    assert "pooled" not in store._conninfo


@pytest.mark.parametrize("value", ["", "1", "True", "yes", "transaction"])
def test_a_pooled_that_is_neither_true_nor_false_is_refused(value: str) -> None:
    with pytest.raises(ulak.BadInput, match="neither true nor false"):
        store_of(f"{WHERE}?pooled={value}")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ada:p%40s%2Fs%3A%25@h/d", {"user": "ada", "password": "p@s/s:%"}),
        ("postgresql://ada@h/d?password=a+b%20c&pooled=true", {"password": "a+b c"}),
        ("postgres://h/d?sslmode=verify-full&sslrootcert=/ca.pem", {"sslmode": "verify-full"}),
        ("postgresql://h/d?options=-c%20search_path%3Dx", {"options": "-c search_path=x"}),
        ("postgresql://a:1,b:2/d?target_session_attrs=read-write", {"host": "a,b", "port": "1,2"}),
        ("postgresql://%2Fvar%2Frun/d", {"host": "/var/run"}),
        ("postgresql:///d?host=/var/run&pooled=true", {"host": "/var/run", "dbname": "d"}),
        ("postgresql://", {}),
    ],
)
def test_what_is_libpqs_reaches_it_to_the_letter(url: str, expected: dict[str, str]) -> None:
    found = words(url)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "url",
    [f"{WHERE}?sslmod=require", "postgresql://u:pa/ss@h/d", "postgresql://h:port/d"],
)
def test_what_libpq_cannot_read_is_refused_at_once(url: str) -> None:
    with pytest.raises(ulak.BadInput, match="cannot be read") as refusal:
        store_of(url)
    assert "pa/ss" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("sqlite:app.db", "sqlite:///app.db"),
        ("sqlite:app.db?synchronous=NORMAL", "sqlite:///app.db"),
        ("sqlite:/app.db", "sqlite:///app.db"),
        ("sqlite:/app.db", "sqlite:////app.db"),
        ("sqlite://app.db", "sqlite:///app.db"),
        ("sqlite://folder/app.db", "sqlite:///folder/app.db"),
        ("SQLite:app.db", "sqlite:///app.db"),
        ("sqlite:", "sqlite:///file.db"),
        ("sqlite:///", "sqlite:///file.db"),
        ("sqlite:///a#b.db", "sqlite:///a%23b.db"),
        ("sqlite:///a%00b.db", "sqlite:///ab.db"),
        ("sqlite:///:memory:", "memory://"),
        ("memory:", "memory://"),
        ("memory:app.db", "memory://"),
        ("memory://app.db", "memory://"),
        ("postgresql:jobs", "postgresql://user@host/database"),
        ("postgres:/jobs", "postgresql://user@host/database"),
        ("app.db", "sqlite:///file.db"),
        ("", "sqlite:///file.db"),
    ],
)
def test_a_url_that_would_open_something_else_is_refused_with_what_was_meant(
    url: str, meant: str
) -> None:
    with pytest.raises(ulak.BadInput) as refusal:
        store_of(url)
    assert meant in re.split(r"[ ,;]+", str(refusal.value))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///app.db", "app.db"),
        ("sqlite:////var/app.db", "/var/app.db"),
        ("SQLITE:///app.db", "app.db"),
        ("sqlite:///a%23b%3Fc.db?synchronous=normal", "a#b?c.db"),
    ],
)
def test_a_file_has_the_name_that_the_url_says(url: str, path: str) -> None:
    store = store_of(url)
    assert isinstance(store, SqliteStore)
    assert store.path == Path(path)


def test_an_option_without_a_value_is_refused() -> None:
    with pytest.raises(ulak.BadInput, match="the only option is synchronous"):
        store_of("sqlite:///app.db?mode")


def test_an_engine_of_a_url_names_what_takes_one_and_not_its_password() -> None:
    url: Any = "postgresql://ada:secret@db.example/jobs"
    with pytest.raises(ulak.BadInput, match=r"ulak\.connect") as refused:
        ulak.Engine(url)
    assert "secret" not in str(refused.value)
