"""The scanner finds what was planted, however it is written, and tells nothing of it."""

import base64
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ulak
from tests.conformance.stores import make_schema
from ulak.testing.secret_scan import A_PIECE, Scanner

PLANTED = {"password": "correct horse/battery+staple"}
KEY = "ulak_ab3de5gh_" + "Zx9" * 16 + "q"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJlLW9mLWFkYQ"  # noqa: S105 - nobody's


def ways(data: bytes, planted: dict[str, str] = PLANTED) -> set[tuple[str, str]]:
    return {(leak.what, leak.written) for leak in Scanner(planted).scan_bytes(data, "here")}


def test_a_secret_is_found_in_each_way_of_writing_it() -> None:
    secret = PLANTED["password"]
    assert ways(b"said " + secret.encode()) == {("password", "plain")}
    assert ways(secret.encode().hex().encode()) == {("password", "hex")}
    assert ways(secret.encode().hex().upper().encode()) == {("password", "hex")}
    assert ways(quote(secret, safe="").encode()) == {("password", "percent")}
    assert ways(b"nothing of the kind") == set()


@given(before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_base64_is_found_whatever_stands_around_the_secret(before: bytes, after: bytes) -> None:
    whole = before + PLANTED["password"].encode() + after
    assert ("password", "base64") in ways(base64.b64encode(whole))
    assert ("password", "base64") in ways(base64.urlsafe_b64encode(whole))


def test_keys_and_tokens_are_found_though_nobody_planted_them() -> None:
    assert ways(f"key {KEY}".encode()) == {("key", "plain")}
    assert ways(f"Bearer {TOKEN}".encode()) == {("token", "plain")}
    assert ways(b"ulak_ab3de5gh_*** and ulak_schedule_ticks_total") == set()
    assert ways(KEY.encode(), {"robot": KEY}) == {("robot", "plain")}


def test_a_leak_does_not_say_the_secret() -> None:
    scanner = Scanner(PLANTED)
    [leak] = scanner.scan_bytes(PLANTED["password"].encode(), "here")
    assert str(leak) == "here: password (plain)"
    assert PLANTED["password"] not in repr(scanner)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="less than 8"):
        Scanner({"pin": "1234"})


def test_a_folder_is_scanned_whole(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "app.log").write_text(f"at {quote(PLANTED['password'])}")
    (tmp_path / "clean.log").write_text("nothing")
    # Where two pieces of a large file meet.
    secret = PLANTED["password"].encode()
    (tmp_path / "large.log").write_bytes(b"x" * (A_PIECE - 5) + secret + b"x")
    assert [str(leak) for leak in Scanner(PLANTED).scan_folder(tmp_path)] == [
        f"{tmp_path}/deep/er/app.log: password (percent)",
        f"{tmp_path}/large.log: password (plain)",
    ]


def test_every_value_of_a_sqlite_file_is_scanned(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute('CREATE TABLE "odd ""name" (id INTEGER PRIMARY KEY, body BLOB, said TEXT)')
        # Longer than a page and in the middle of it: parted in the file.
        body = b"y" * 4070 + PLANTED["password"].encode() + b"y" * 9000
        db.execute('INSERT INTO "odd ""name" (body, said) VALUES (?, ?)', (body, f"k={KEY}"))
        found = {str(leak) for leak in Scanner(PLANTED).scan_sqlite(path)}
    assert found == set(), "not committed yet, so not read"
    found = {str(leak) for leak in Scanner(PLANTED).scan_folder(tmp_path)}
    assert f'{path}: odd "name.body: password (plain)' in found
    assert f'{path}: odd "name.said: key (plain)' in found


def test_every_table_of_a_schema_is_scanned(databases) -> None:
    with databases.lend(make_schema) as url:
        engine = ulak.connect(url)

        @engine.job
        def greet(name: str) -> None: ...

        with engine:
            engine.submit(greet, "ada", actor="ada")
            assert Scanner(PLANTED).scan_postgres(url) == []
            engine.submit(greet, PLANTED["password"], actor=KEY)
        found = {str(leak) for leak in Scanner(PLANTED).scan_postgres(url)}
        assert "ulak: ulak.payloads.data: password (plain)" in found
        assert "ulak: ulak.events.actor: key (plain)" in found
        with psycopg.connect(url) as db:
            db.execute("CREATE SCHEMA other")
        assert Scanner(PLANTED).scan_postgres(url, schema="other") == []
