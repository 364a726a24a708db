"""What is sent to PostgreSQL in our own arrays comes back as it was."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.databases import Databases
from ulak.store.postgres import values
from ulak.store.postgres.values import Blobs, Groups, Ids, Numbers, Sheet, Texts
from ulak.store.sql.session import Id

BIG = 2**63 - 1
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
LONG = st.sampled_from(["x" * 100_000, "\u20ac" * 30_000])

several = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def cursor(databases: Databases) -> Iterator[psycopg.Cursor[Any]]:
    with databases.lend() as url, psycopg.connect(url, autocommit=True) as db:
        values.teach(db.adapters)
        yield db.cursor(binary=True)


def echo(cursor: psycopg.Cursor[Any], kind: str, value: Any) -> Any:
    found = cursor.execute(f"SELECT pg_typeof(%(v)s)::text, %(v)s::{kind}", {"v": value}).fetchone()
    assert found is not None
    assert found[0] == kind
    return found[1]


@several
@given(ids=st.lists(st.binary(min_size=16, max_size=16)))
def test_ids(cursor: psycopg.Cursor[Any], ids: list[bytes]) -> None:
    assert echo(cursor, "uuid[]", Ids(ids)) == ids
    for one in ids[:1]:
        assert echo(cursor, "uuid", Id(one)) == one


@several
@given(numbers=st.lists(st.none() | st.integers(-BIG - 1, BIG)))
def test_numbers(cursor: psycopg.Cursor[Any], numbers: list[int | None]) -> None:
    assert echo(cursor, "bigint[]", Numbers(numbers)) == numbers


@several
@given(texts=st.lists(st.none() | TEXT | LONG, max_size=8))
def test_texts(cursor: psycopg.Cursor[Any], texts: list[str | None]) -> None:
    assert echo(cursor, "text[]", Texts(texts)) == texts


@several
@given(blobs=st.lists(st.none() | st.binary(), max_size=8))
def test_blobs(cursor: psycopg.Cursor[Any], blobs: list[bytes | None]) -> None:
    assert echo(cursor, "bytea[]", Blobs(blobs)) == blobs


@pytest.mark.parametrize("number", [0, 1, -1, 32767, 2**31, BIG, -BIG - 1])
def test_a_number_is_always_of_one_type(cursor: psycopg.Cursor[Any], number: int) -> None:
    assert echo(cursor, "bigint", number) == number


@pytest.mark.parametrize("text", ["", "a", "\u20ac", "x" * 10_000])
def test_a_text_is_always_of_one_type(cursor: psycopg.Cursor[Any], text: str) -> None:
    assert echo(cursor, "text", text) == text


@several
@given(
    rows=st.lists(st.tuples(st.none() | TEXT, st.none() | st.integers(0, 3), st.integers(0, BIG)))
)
def test_rows_of_groups_come_out_in_their_order_with_what_they_share(
    cursor: psycopg.Cursor[Any], rows: list[tuple[str | None, int | None, int]]
) -> None:
    sheet, groups = Sheet("s", {"own": "bigint"}, {"word": "text", "number": "bigint"}), Groups()
    for word, number, own in rows:
        groups.add((word, number), (own,))
    names = ("word", "number", "own")
    statement = f"SELECT {sheet.columns(names)} FROM {sheet.source}"  # noqa: S608 - our own names
    found = cursor.execute(statement, groups.bind(sheet)).fetchall()
    assert found == rows
    assert len(groups.bind(sheet)["s_word"].values) == len({row[:2] for row in rows})
