"""Every kind of damage is made on purpose, below the verbs of each store, and found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import ulak
from tests.databases import Databases
from tests.unit.engine import museum
from tests.unit.engine.museum import KEEPER, Museum
from tests.unit.engine.surgeon import Cut, MemorySurgeon, PostgresSurgeon, SqliteSurgeon, Surgeon
from ulak.core.job import Event, JobRow, Message
from ulak.engine import verify
from ulak.ids import to_text
from ulak.store.protocol import DedupRow

TENANT = "acme"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Museum:
    """A museum in a file, of which each test takes a copy."""
    built = museum.build(f"sqlite:///{tmp_path_factory.mktemp('museum')}/original.db")
    built.harness.close()
    return built


@pytest.fixture(scope="module")
def hall() -> museum.Hall:
    """A museum in PostgreSQL, of which each test borrows a copy."""
    return museum.Hall()


@contextmanager
def opened(built: Museum) -> Iterator[Museum]:
    built.harness.engine.open()
    yield built
    built.harness.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def rooms(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Museum, Surgeon]]:
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_rooms")
    elif request.param == "sqlite":
        path = tmp_path / "museum.db"
        with opened(museum.copy(request.getfixturevalue("original"), path)) as built:
            surgeon = SqliteSurgeon(path)
            yield built, surgeon
            surgeon.db.close()
    else:
        with opened(museum.build()) as built:
            store: Any = built.harness.engine.store
            yield built, MemorySurgeon(store)


@pytest.fixture
def postgres_rooms(
    databases: Databases, hall: museum.Hall
) -> Iterator[tuple[Museum, PostgresSurgeon]]:
    with databases.lend(hall.prepare) as url, opened(hall.at(url)) as built:
        surgeon = PostgresSurgeon(url)
        yield built, surgeon
        surgeon.db.close()


def row_of(rooms: Museum, name: str) -> JobRow:
    row = rooms.harness.engine.store.find_job(rooms.id(name))
    assert row is not None
    return row


def last_event(rooms: Museum, name: str) -> Event:
    return rooms.harness.engine.store.trail(rooms.id(name))[-1]


def append(surgeon: Surgeon, rooms: Museum, name: str, **columns: Any) -> None:
    """Add an event like the last one, and make the row agree with it."""
    last = last_event(rooms, name)
    surgeon.add_event(last._replace(seq=last.seq + 1, **columns))
    surgeon.edit_job(rooms.id(name), seq=last.seq + 1)


def swap(surgeon: Surgeon, job_id: bytes, a: int, b: int) -> None:
    surgeon.edit_event(job_id, a, seq=1000)
    surgeon.edit_event(job_id, b, seq=a)
    surgeon.edit_event(job_id, 1000, seq=b)


def make_illegal_move(s: Surgeon, m: Museum) -> None:
    append(s, m, "later", kind="moved", from_state="first", to_state="done", commit_id=b"c" * 16)
    s.edit_job(m.id("later"), state="done", role="done", lane="", version=2, wake_at=None)
    s.count("steps", "first", "ready", -1)
    s.count("steps", "done", "done", 1)


def resubmit(s: Surgeon, m: Museum) -> None:
    first = m.harness.engine.store.trail(m.id("later"))[0]
    s.add_event(first._replace(seq=2, commit_id=b"c" * 16))
    s.edit_job(m.id("later"), seq=2)


def repeat_commit(s: Surgeon, m: Museum) -> None:
    seq = row_of(m, "done").seq
    first = m.harness.engine.store.trail(m.id("done"))[1]
    s.edit_event(m.id("done"), seq, commit_id=first.commit_id)


def message_of(rooms: Museum, name: str, seq: int) -> Message:
    return Message(rooms.id(name), seq, 7, "key", "topic", b"1", 0)


NOBODY = bytes(16)
LIMIT = "limited/queued"
OVEN_LIMIT = "oven/raw"


def forget_slot(s: Surgeon, m: Museum) -> None:
    s.edit_job(m.id("baking"), slot=None)
    s.fill_slot(OVEN_LIMIT, 1, None)


# For each kind, the damages that must be reported as it, each with the name of the job in which
# it is found; '' where the finding names no job of the museum.
DAMAGES: dict[str, list[tuple[str, Cut]]] = {
    verify.replay.EVENT_MISSING: [
        ("done", lambda s, m: s.drop_event(m.id("done"), 2)),
        ("done", lambda s, m: s.drop_event(m.id("done"), row_of(m, "done").seq)),
        ("later", lambda s, m: s.drop_event(m.id("later"), 1)),
        ("stranger", lambda s, m: s.drop_event(m.id("stranger"), 1)),
    ],
    verify.replay.EVENT_DOUBLED: [("done", lambda s, m: append(s, m, "done"))],
    verify.replay.EVENT_OUT_OF_ORDER: [
        ("done", lambda s, m: swap(s, m.id("done"), 3, 4)),
        ("held", lambda s, m: swap(s, m.id("held"), 1, 2)),
        ("done", lambda s, m: s.edit_event(m.id("done"), 2, round=2)),
        ("later", resubmit),
    ],
    verify.replay.EVENT_UNKNOWN: [
        ("done", lambda s, m: s.edit_event(m.id("done"), 2, kind="danced"))
    ],
    verify.replay.COMMIT_DOUBLED: [("done", repeat_commit)],
    verify.replay.MOVE_ILLEGAL: [("later", make_illegal_move)],
    verify.replay.ROW_DIFFERS: [
        ("later", lambda s, m: s.edit_job(m.id("later"), state="second")),
        ("later", lambda s, m: s.edit_job(m.id("later"), round=2)),
        ("later", lambda s, m: s.edit_job(m.id("later"), seq=0)),
        ("done", lambda s, m: s.edit_job(m.id("done"), version=1)),
        ("stranger", lambda s, m: s.edit_job(m.id("stranger"), state="gone")),
    ],
    verify.replay.TOKEN_WENT_BACK: [
        ("done", lambda s, m: s.edit_job(m.id("done"), token=1)),
        ("leased", lambda s, m: s.edit_job(m.id("leased"), token=0)),
        ("retried", lambda s, m: s.edit_event(m.id("retried"), row_of(m, "retried").seq, token=0)),
    ],
    verify.replay.MESSAGE_LOST: [("done", lambda s, m: s.drop_message(m.id("done"), 1))],
    verify.replay.MESSAGE_UNKNOWN: [
        ("done", lambda s, m: s.add_message(message_of(m, "done", 1))),
        ("done", lambda s, m: s.add_message(message_of(m, "done", 99))),
    ],
    verify.replay.STATE_UNKNOWN: [
        ("later", lambda s, m: s.edit_job(m.id("later"), state="elsewhere")),
        ("done", lambda s, m: s.edit_event(m.id("done"), 2, to_state="elsewhere")),
    ],
    verify.replay.ROLE_WRONG: [
        ("later", lambda s, m: s.edit_job(m.id("later"), role="busy")),
        ("later", lambda s, m: s.edit_job(m.id("later"), role="asleep")),
        ("done", lambda s, m: s.edit_job(m.id("done"), role="undoing")),
        ("done", lambda s, m: s.edit_job(m.id("done"), leased_by=KEEPER)),
    ],
    verify.replay.LANE_WRONG: [
        ("done", lambda s, m: s.edit_job(m.id("done"), lane="steps/thread/steps@1")),
        ("held", lambda s, m: s.edit_job(m.id("held"), lane="steps/thread/steps@1")),
    ],
    verify.replay.STUCK: [
        ("later", lambda s, m: s.edit_job(m.id("later"), lane="")),
        ("stranger", lambda s, m: s.edit_job(m.id("stranger"), lane="")),
        ("paying", lambda s, m: s.edit_job(m.id("paying"), awaits=None)),
        ("undoing", lambda s, m: s.edit_job(m.id("undoing"), started="")),
        ("undoing", lambda s, m: s.edit_job(m.id("undoing"), undo_to=None)),
    ],
    verify.replay.WAKE_MISSING: [
        ("asked", lambda s, m: s.edit_job(m.id("asked"), wake_at=None)),
        ("resting", lambda s, m: s.edit_job(m.id("resting"), wake_at=2**60)),
        ("later", lambda s, m: s.edit_job(m.id("later"), wake_at=None)),
    ],
    verify.PAYLOAD_MISSING: [("held", lambda s, m: s.drop_payload(m.id("held")))],
    verify.RESULT_UNSEEN: [("held", lambda s, m: s.edit_job(m.id("held"), has_results=0))],
    verify.REQUESTS_OFF: [
        ("asked", lambda s, m: s.edit_job(m.id("asked"), requests=0)),
        ("asked", lambda s, m: s.drop_requests(m.id("asked"))),
    ],
    verify.COUNTER_OFF: [
        ("", lambda s, m: s.count("steps", "first", "ready", 1)),
        ("", lambda s, m: s.count("steps", "first", "ready", -1)),
        ("", lambda s, m: s.count("gone", "first", "ready", 1)),
    ],
    verify.SLOT_NOT_LEASED: [
        ("done", lambda s, m: s.fill_slot(LIMIT, 1, m.id("done"))),
        ("parked", lambda s, m: s.fill_slot(LIMIT, 2, m.id("parked"))),
        ("", lambda s, m: s.fill_slot(LIMIT, 2, NOBODY)),
        # A slot of a run, where the job has to have one of its state.
        ("baking", lambda s, m: s.fill_slot(OVEN_LIMIT, 1, m.id("baking"))),
    ],
    verify.SLOT_DOUBLED: [("leased", lambda s, m: s.fill_slot(LIMIT, 2, m.id("leased")))],
    verify.SLOT_WRONG: [("leased", lambda s, m: s.rename_slots(LIMIT, "another"))],
    verify.SLOT_MISSING: [
        ("leased", lambda s, m: s.fill_slot(LIMIT, 1, None)),
        ("baking", lambda s, m: s.fill_slot(OVEN_LIMIT, 1, None)),
        ("baking", forget_slot),
    ],
    verify.STATE_OVERFULL: [
        ("", lambda s, m: s.edit_job(m.id("raw"), state="baking", role="busy", parked_on=None)),
    ],
    verify.PARKED_WITHOUT_LIMIT: [
        ("parked", lambda s, m: s.rename_slots(LIMIT, "another")),
        ("parked", lambda s, m: s.edit_job(m.id("parked"), parked_on="another")),
        ("unpaid", lambda s, m: s.drop_rates()),
        ("unpaid", lambda s, m: s.edit_job(m.id("unpaid"), rate="metered/other")),
        ("paused", lambda s, m: s.edit_job(m.id("paused"), parked_on="/key/c")),
    ],
    verify.SLOT_BEYOND_LIMIT: [
        ("", lambda s, m: s.lower_limit(LIMIT, 0)),
        ("", lambda s, m: s.lower_limit("metered/queued", 1)),
    ],
    verify.BUCKET_OVERFULL: [("", lambda s, m: s.edit_bucket("metered/queued/a", 2**60))],
    verify.BUCKET_OF_NO_RATE: [("", lambda s, m: s.drop_rates())],
    verify.PAUSE_NOT_ENDED: [("", lambda s, m: s.end_pauses(1))],
    verify.LEASE_WITHOUT_RUN: [
        ("leased", lambda s, m: s.edit_job(m.id("leased"), leased_at=0, changed_at=0))
    ],
    verify.LEASE_WITHOUT_WORKER: [("leased", lambda s, m: s.drop_worker(KEEPER))],
    verify.KEY_NOT_FREED: [
        (
            "cancelled",
            lambda s, m: s.add_key(
                DedupRow(TENANT, "asking", "cancelled", m.id("cancelled"), None)
            ),
        )
    ],
    verify.KEY_OF_NO_JOB: [
        ("", lambda s, m: s.add_key(DedupRow(TENANT, "asking", "nobody", NOBODY, None))),
        (
            "asked",
            lambda s, m: s.add_key(DedupRow(TENANT, "asking", "other", m.id("asked"), None)),
        ),
    ],
    verify.KEY_NOT_HELD: [
        ("asked", lambda s, m: s.drop_key(m.id("asked"))),
        ("kept", lambda s, m: s.drop_key(m.id("kept"))),
    ],
    verify.PROOF_MISSING: [
        ("", lambda s, m: s.drop_proof(TENANT, 2)),
        ("cancelled", lambda s, m: drop_last_proof_of(s, m, "cancelled")),
    ],
    verify.PROOF_BROKEN: [
        ("", lambda s, m: s.edit_proof(TENANT, 2, body=b"forged")),
        ("", lambda s, m: s.edit_proof(TENANT, 2, hash=b"forged")),
    ],
    verify.PROOF_DIFFERS: [
        ("refused", lambda s, m: s.edit_event(m.id("refused"), 2, actor="mallory"))
    ],
    verify.TICK_MISSING: [("ticked", lambda s, m: s.drop_tick(m.id("ticked")))],
    verify.TICK_DOUBLED: [("ticked", lambda s, m: s.pass_tick_on(m.id("ticked"), m.id("done")))],
    verify.ORPHAN: [("", lambda s, m: s.drop_job(m.id("done")))],
}  # fmt: skip


def drop_last_proof_of(s: Surgeon, m: Museum, name: str) -> None:
    """Unchain an event of a job: its number passes to nobody."""
    store = m.harness.engine.store
    proofs = [p for p in store.scan_proofs(TENANT) if p.job_id == m.id(name)]
    s.drop_proof(TENANT, proofs[-1].proof_id)


@pytest.mark.shows("E-63", "E-4", "E-65")
@pytest.mark.parametrize(
    ("kind", "name", "cut"),
    [
        pytest.param(kind, name, cut, id=f"{kind}-{n}")
        for kind, cuts in DAMAGES.items()
        for n, (name, cut) in enumerate(cuts, 1)
    ],
)
def test_damage_made_on_purpose_is_reported(
    rooms: tuple[Museum, Surgeon], kind: str, name: str, cut: Cut
) -> None:
    built, surgeon = rooms
    cut(surgeon, built)
    found = [f for f in built.harness.verify() if f.kind == kind]
    assert found
    if name:
        assert built.ids[name] in {f.job_id for f in found}
    for finding in found:
        assert finding.sentence
        assert not finding.sentence.endswith(".")


@pytest.mark.shows("E-63")
def test_no_kind_of_damage_is_without_a_test() -> None:
    assert set(DAMAGES) == set(verify.KINDS)
    assert len(verify.KINDS) >= 12


@pytest.mark.shows("E-63", "E-2")
def test_a_store_with_every_kind_of_job_is_clean(rooms: tuple[Museum, Surgeon]) -> None:
    built, _ = rooms
    roles = {row_of(built, name).role for name in built.ids}
    assert roles == {
        "ready", "busy", "waiting", "held", "undoing", "failed", "done", "expired", "cancelled"
    }  # fmt: skip
    assert built.harness.verify() == []


@pytest.mark.shows("E-69")
@pytest.mark.parametrize(
    ("kind", "is_known"),
    [("letters.stamped", True), ("letters.sent-out.twice", True), ("letters", False),
     ("Letters.stamped", False), ("letters.", False), (".stamped", False)],
)  # fmt: skip
def test_a_line_of_a_service_is_known_by_the_form_of_its_kind(kind: str, is_known: bool) -> None:
    built = museum.build()
    store: Any = built.harness.engine.store
    state = last_event(built, "done").to_state
    append(
        MemorySurgeon(store), built, "done", kind=kind, from_state=state, to_state=state,
        commit_id=b"n" * 16,
    )  # fmt: skip
    found = {f.kind for f in built.harness.verify()}
    assert (verify.replay.EVENT_UNKNOWN not in found) is is_known


@pytest.mark.shows("E-63")
def test_the_same_event_twice_under_one_number_is_found_where_a_store_allows_it() -> None:
    built = museum.build()
    store: Any = built.harness.engine.store
    MemorySurgeon(store).add_event(last_event(built, "done"))
    assert verify.replay.EVENT_DOUBLED in {f.kind for f in built.harness.verify()}


@pytest.mark.shows("E-63", "E-52")
@pytest.mark.parametrize("cut", ["move_event", "copy_event"])
def test_an_event_in_a_month_that_is_not_its_jobs_is_found(
    postgres_rooms: tuple[Museum, PostgresSurgeon], cut: str
) -> None:
    built, surgeon = postgres_rooms
    getattr(surgeon, cut)(built.id("done"), 2, 202601)
    found = built.harness.verify()
    (orphan,) = [f for f in found if f.kind == verify.ORPHAN]
    assert f"events of job {built.ids['done']}: there is no such job in 202601" in orphan.sentence
    is_missed = verify.replay.EVENT_MISSING in {f.kind for f in found}
    assert is_missed == (cut == "move_event")


@pytest.mark.shows("E-63")
def test_what_postgresql_itself_makes_impossible(
    postgres_rooms: tuple[Museum, PostgresSurgeon],
) -> None:
    built, surgeon = postgres_rooms
    later, parked = built.id("later"), built.id("parked")
    impossible: dict[type[psycopg.Error], list[Callable[[], None]]] = {
        psycopg.errors.UniqueViolation: [
            lambda: surgeon.add_event(last_event(built, "later")),
            lambda: surgeon.add_message(
                built.harness.engine.store.scan_messages(built.id("done"))[0].message
            ),
        ],
        psycopg.errors.CheckViolation: [
            lambda: surgeon.edit_job(later, priority=9),
            lambda: surgeon.edit_job(parked, leased_by=KEEPER),
            lambda: surgeon.lower_limit(LIMIT, -1),
            lambda: surgeon.edit_bucket("metered/queued/a", -1),
        ],
        psycopg.errors.NotNullViolation: [lambda: surgeon.edit_job(later, role=None)],
        psycopg.errors.ProtocolViolation: [lambda: surgeon.edit_job(later, id=b"short")],
    }
    for error, cuts in impossible.items():
        for cut in cuts:
            with pytest.raises(error):
                cut()
    assert built.harness.verify() == []


@pytest.mark.shows("E-48")
def test_counters_are_compared_with_a_count(rooms: tuple[Museum, Surgeon]) -> None:
    built, surgeon = rooms
    surgeon.count("steps", "done", "done", 3)
    (finding,) = built.harness.verify()
    assert finding.job_id == ""
    assert 'the counter of "done" (done) says 9, there are 6 jobs' in finding.sentence


@pytest.mark.shows("E-63")
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_nothing_is_reported_of_jobs_that_move_while_they_are_looked_at(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/live.db"}
    engine = ulak.connect(urls.get(kind) or request.getfixturevalue("postgres_url"))
    flow = museum.steps_flow()
    engine.add(flow)
    limited = museum.limited_flow()
    engine.add(limited)
    looks: list[Any] = []
    with engine, engine.working():
        jobs = [engine.submit(flow, {"how": "spawn" if n % 2 else ""}) for n in range(60)]
        jobs += [engine.submit(limited, {}) for _ in range(20)]
        while any(not engine.get(job.id).is_final for job in jobs):
            looks.append(engine.inspect.verify())
        looks.append(engine.inspect.verify())
    assert looks == [[]] * len(looks)


def test_verify_names_what_it_found_by_the_id_that_people_use() -> None:
    built = museum.build()
    store: Any = built.harness.engine.store
    job_id: bytes = built.id("held")
    MemorySurgeon(store).drop_payload(job_id)
    (finding,) = built.harness.verify()
    assert finding == verify.Finding("payload-missing", to_text(job_id), "its payload is not there")


def test_a_pruned_job_leaves_its_proofs_and_no_finding(rooms: tuple[Museum, Surgeon]) -> None:
    built, _ = rooms
    harness = built.harness
    # Not past the timeout of the job that the keeper has leased: that would be a finding.
    harness.clock.advance(timedelta(minutes=10))
    before = harness.clock.now()
    assert harness.engine.store.prune(before=before, limit=100) > 0
    assert harness.engine.store.find_job(built.id("cancelled")) is None
    assert built.id("cancelled") in {p.job_id for p in harness.engine.store.scan_proofs(TENANT)}
    assert harness.verify() == []
