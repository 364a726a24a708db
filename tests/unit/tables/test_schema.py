"""Tables are made and upgraded by whoever comes first, once, and forward only."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tests.unit.tables.conftest import LOCK, STARS, Service
from ulak import Flow, Message
from ulak.errors import BadInput, NotSupported, StoreError
from ulak.kit.clock import rfc3339, to_instant
from ulak.tables import DeliveryView, JobView, Tables, TrailView

CROWD = 6
ADD = "INSERT INTO {schema}.acme_notes (text) VALUES (?)"
COUNT = "SELECT count(*) FROM {schema}.acme_notes"
VERSION = "SELECT version FROM {schema}.acme_notes_schema"
BROKEN = {
    "sqlite": STARS["sqlite"] + "\nINSERT INTO acme_nothing VALUES (1);",
    "postgresql": STARS["postgresql"] + "\nINSERT INTO ulak.acme_nothing VALUES (1);",
}


def add(tables: Tables, text: str) -> None:
    with tables.writing() as connection:
        tables.execute(connection, ADD, text)


def test_the_first_use_makes_the_tables(service: Service) -> None:
    tables = service.start()
    assert tables.read(COUNT) == [(0,)]
    assert tables.read(VERSION) == [(1,)]


def test_many_who_start_at_once_make_the_tables_once(service: Service) -> None:
    service.release(2, STARS)
    crowd = [service.start() for _ in range(CROWD)]
    for engine in service.engines:
        engine.open()
    together = Barrier(CROWD)

    def begin(number: int) -> None:
        together.wait()
        add(crowd[number], f"note {number}")

    with ThreadPoolExecutor(CROWD) as threads:
        list(threads.map(begin, range(CROWD)))
    assert crowd[0].read(COUNT) == [(CROWD,)]
    assert crowd[0].read(VERSION) == [(2,)]


def test_a_later_release_runs_only_what_is_new_and_keeps_what_is_there(service: Service) -> None:
    add(service.start(), "kept")
    service.release(2, STARS)
    later = service.start()
    assert later.read("SELECT text, stars FROM {schema}.acme_notes") == [("kept", 0)]
    assert later.read(VERSION) == [(2,)]


def test_a_file_that_fails_leaves_nothing_of_its_own(service: Service) -> None:
    add(service.start(), "kept")
    service.release(2, BROKEN)
    with pytest.raises(Exception):  # noqa: B017, PT011 - each database has its own
        service.start().read(COUNT)
    service.release(2, STARS)
    mended = service.start()
    assert mended.read("SELECT text, stars FROM {schema}.acme_notes") == [("kept", 0)]


def test_who_failed_to_make_the_tables_tries_again(service: Service) -> None:
    service.release(2, BROKEN)
    tables = service.start()
    with pytest.raises(Exception):  # noqa: B017, PT011 - each database has its own
        tables.ensure()
    service.release(2, STARS)
    tables.ensure()
    assert tables.read(VERSION) == [(2,)]


def test_a_newer_release_is_left_alone(service: Service) -> None:
    service.release(2, STARS)
    add(service.start(), "of the newer one")
    for folder in service.folder.iterdir():
        (folder / "0002.sql").unlink()
    older = service.start()
    with pytest.raises(StoreError, match=r"the tables of notes are at schema 2, .* knows 1"):
        add(older, "of the older one")
    service.release(2, STARS)
    assert service.start().read(COUNT) == [(1,)]


@pytest.mark.shows("E-90")
def test_a_newer_release_that_lets_older_ones_go_on_is_served_beside(service: Service) -> None:
    before = service.start()
    add(before, "of the older one")
    lenient = {name: f"-- oldest: 1\n{text}" for name, text in STARS.items()}
    service.release(2, lenient)
    add(service.start(), "of the newer one")
    for folder in service.folder.iterdir():
        (folder / "0002.sql").unlink()
    add(before, "of the older one, which has run on")
    add(service.start(), "of the older one, which has started again")
    assert before.read(COUNT) == [(4,)]
    assert before.read(VERSION) == [(2,)]


@pytest.mark.shows("E-90")
def test_a_version_table_that_names_no_oldest_release_lets_none_below_in(service: Service) -> None:
    tables = service.start()
    add(tables, "kept")
    with tables.writing() as connection:
        tables.execute(connection, "ALTER TABLE {schema}.acme_notes_schema DROP COLUMN oldest")
        tables.execute(connection, "UPDATE {schema}.acme_notes_schema SET version = 2")
    with pytest.raises(StoreError, match=r"only releases that know 2 or later may use them"):
        service.start().read(COUNT)


@pytest.mark.shows("E-90")
def test_a_version_table_of_an_earlier_release_learns_to_name_the_oldest(service: Service) -> None:
    tables = service.start()
    add(tables, "kept")
    with tables.writing() as connection:
        tables.execute(connection, "ALTER TABLE {schema}.acme_notes_schema DROP COLUMN oldest")
    service.release(2, {name: f"-- oldest: 1\n{text}" for name, text in STARS.items()})
    assert service.start().read(COUNT) == [(1,)]
    oldest = "SELECT version, oldest FROM {schema}.acme_notes_schema"
    assert tables.read(oldest) == [(2, 1)]


def test_a_last_statement_needs_no_semicolon(service: Service) -> None:
    service.release(2, {name: text.rstrip(";") for name, text in STARS.items()})
    service.release(3, dict.fromkeys(STARS, "SELECT 1;\n-- Nothing follows.\n"))
    assert service.start().read("SELECT stars FROM {schema}.acme_notes") == []


@pytest.mark.parametrize("numbers", [[], [2], [1, 3]])
def test_a_gap_in_the_files_is_named(service: Service, numbers: list[int]) -> None:
    for folder in service.folder.iterdir():
        (folder / "0001.sql").rename(folder / "notes.txt")
    for number in numbers:
        service.release(number, STARS)
    found = ", ".join(f"{number:04}.sql" for number in numbers) or "none"
    with pytest.raises(BadInput, match=f"the files of notes .* there are {found}"):
        service.start().ensure()


def test_a_database_without_files_of_its_own_is_named(service: Service) -> None:
    for folder in service.folder.iterdir():
        folder.rename(service.folder / f"not-{folder.name}")
    with pytest.raises(BadInput, match="there are none"):
        service.start().ensure()


@pytest.mark.parametrize("name", ["", "1st", "Notes", 'x"; DROP TABLE jobs; --', "a" * 64])
def test_the_table_of_the_version_has_a_plain_name(name: str) -> None:
    with pytest.raises(BadInput, match="cannot be the table of a version"):
        Service("", None, []).schema(version_table=name)  # type: ignore[arg-type]


VIEW = DeliveryView("acme_letters", handler="acme-mail", topic="acme.note")
MOVED = [
    ("first", '{"n": 1}', 7, "sent", 1, 7, None, 9, None),
    ("first", '{"n": 2}', 8, "dead", 3, 8, 99, None, "gone"),
    ("first", '{"n": 3}', 8, "pending", 0, 8, None, None, None),
    ("second", '{"n": 4}', 8, "pending", 2, 8, None, None, "busy"),
    ("second", '{"n": 5}', 8, "pending", 0, 8, None, None, None),
]


@pytest.mark.shows("E-70")
def test_a_view_shows_the_deliveries_of_one_handler_and_takes_those_of_another_outbox(
    service: Service,
) -> None:
    columns = "key, data, at, state, tries, not_before, give_up_at, sent_at, error"
    read = f"SELECT {columns} FROM {{schema}}.acme_letters ORDER BY position"  # noqa: S608
    tables = service.start(deliveries=VIEW)
    (engine,), got = service.engines, list[int]()
    with tables.writing() as connection:
        for row in MOVED:
            marks = ", ".join("?" * len(row))
            tables.execute(
                connection,
                f"INSERT INTO {{schema}}.acme_letters ({columns}) VALUES ({marks})",  # noqa: S608
                *row,
            )
    assert tables.read(read) == MOVED
    assert engine.outbox.handlers() == {"acme-mail": "acme.note"}, "nothing is given up unseen"

    @engine.on("acme.note", name="acme-mail", block=True)
    def receive(message: Message) -> dict[str, str]:
        got.append(message.data["n"])
        return {"said": "thanks"}

    engine.emit("acme.note", {"n": 6}, key="third")
    engine.emit("elsewhere", {"n": 7})
    assert engine.outbox.deliver("acme-mail") == {"sent": 3}
    assert sorted(got) == [4, 5, 6], "what is dead stops its key"
    assert got.index(4) < got.index(5)
    (dead,) = engine.outbox.dead()
    assert (dead.data, dead.tries, dead.error) == ({"n": 2}, 3, "gone")
    engine.outbox.redrive(dead.id, actor="ada")
    assert engine.outbox.deliver("acme-mail") == {"sent": 2}
    assert got[3:] == [2, 3]
    answers = tables.read("SELECT answer FROM {schema}.acme_letters ORDER BY position")
    assert answers == [(None,), *[('{"said":"thanks"}',)] * 5]
    assert engine.inspect.verify() == []


def test_a_view_is_made_once_and_again_by_a_later_release(service: Service) -> None:
    service.start(deliveries=VIEW).ensure()
    service.release(2, STARS)
    assert service.start(deliveries=VIEW).read("SELECT count(*) FROM {schema}.acme_letters") == [
        (0,)
    ]


@pytest.mark.parametrize(
    "wrong", [{"name": "1st"}, {"handler": "it's"}, {"topic": "'; DROP TABLE jobs; --"}]
)
def test_a_view_has_plain_names(wrong: dict[str, str]) -> None:
    said = {"name": "acme_letters", "handler": "acme-mail", "topic": "acme.note", **wrong}
    with pytest.raises(BadInput, match="use lower-case letters, digits and underscores"):
        DeliveryView(**said)


LETTERS = Flow.steps("letters", ("write", lambda run: run.payload["to"]))
JOBS = JobView("acme_jobs", flow="letters")
TRAIL = TrailView("acme_trail", flow="letters")


def test_views_show_the_jobs_of_one_flow_and_their_trails(service: Service) -> None:
    tables = service.start(jobs=JOBS, trail=TRAIL)
    (engine,) = service.engines
    engine.add(LETTERS)
    other = Flow.steps("others", ("write", lambda run: None))
    engine.add(other)
    engine.submit(other, {})
    job = engine.submit(LETTERS, {"to": "Ada é"}, tenant="acme", actor="bob", dedup_key="k")
    engine.note(job.id, "letters.read", "twice", actor="eve", n=2)
    engine.cancel(job.id, actor="eve", note="too late")
    key, now = tables.make_key(job.id), engine.get(job.id)
    read = "SELECT * FROM {schema}.acme_jobs"
    (row,) = tables.read(read)
    assert tables.read(f"{read} WHERE key = ?", key) == [row]
    assert row[1:6] == (job.id, "acme", "cancelled", "cancelled", "cancelled")
    assert row[6:8] == ("k", '{"to":"Ada é"}')
    assert row[8:10] == (1, 3)
    assert row[11:14] == (to_instant(job.created_at), to_instant(now.changed_at), "bob")
    assert row[15:] == tuple(rfc3339(at, "milliseconds") for at in (job.created_at, now.changed_at))
    lines = tables.read(
        "SELECT job_id, seq, kind, from_state, to_state, actor, code, message, details, round, at "
        "FROM {schema}.acme_trail WHERE key = ? ORDER BY seq", key,
    )  # fmt: skip
    assert [line[:10] for line in lines] == [
        (job.id, 1, "submitted", None, "write", "bob", None, None, None, 1),
        (job.id, 2, "letters.read", "write", "write", "eve", None, "twice", '{"n":2}', 1),
        (job.id, 3, "cancelled", "write", "cancelled", "eve", "cancelled", "too late", None, 1),
    ]
    assert [line[10] for line in lines] == [to_instant(e.at) for e in engine.inspect.trail(job.id)]
    assert tables.read("SELECT count(*) FROM {schema}.acme_trail") == [(3,)]
    with pytest.raises(BadInput, match="is not a job id"):
        tables.make_key("x")


@pytest.mark.parametrize("view", [JobView, TrailView])
def test_a_view_of_a_flow_has_plain_names(view: type[JobView]) -> None:
    for name, flow in [("1st", "letters"), ("acme_jobs", "it's")]:
        with pytest.raises(BadInput, match="use lower-case letters, digits and underscores"):
            view(name, flow=flow)


def test_a_store_without_transactions_to_share_is_refused(
    make_service: Callable[[str], Service],
) -> None:
    with pytest.raises(
        NotSupported,
        match="notes cannot be kept in the memory store: a note and its job are one transaction; "
        "connect to SQLite or PostgreSQL",
    ):
        make_service("memory://").start()


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("lock", [LOCK, None])
def test_a_turn_is_kept_until_the_transaction_ends(service: Service, lock: int | None) -> None:
    tables, other = service.start(lock=lock), service.start(lock=lock)
    other.ensure()

    def is_free() -> bool:
        # Whatever number it is, this asks without waiting whether somebody holds one.
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        mine = "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        return other.read(f"{held} {mine}") == [(0,)]

    with tables.writing() as connection:
        assert is_free()
        tables.take_turns(connection)
        assert not is_free()
    assert is_free()
