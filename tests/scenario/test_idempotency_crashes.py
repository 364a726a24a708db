"""The crash and race table of docs/spec/idempotency.md, section 5.3: a test for every row.

Processes are real and die by SIGKILL. The effect of a transactional operation is a row of the same
database, that of a leased one a line of a file, to which the database cannot say no.
"""

import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.scenario.record_keepers import is_redis, records_at
from ulak.clock import ManualClock
from ulak.errors import ClaimLost, IdempotencyError, InProgress
from ulak.idempotency import Answer, Answered, Asked, Execution, Guard, Scope
from ulak.idempotency.execution import Phase
from ulak.store.records import COMPLETED, PROCESSING
from ulak.testing import faults
from ulak.testing.children import forked

LEASE, TTL = timedelta(minutes=1), timedelta(days=7)
NO_TIME = timedelta()
ONE_INSTANT = timedelta(microseconds=1)
PATIENCE_S = 120.0
CHILDREN = 4
KEYS = [f"order-{n}" for n in range(12)]
MODES = pytest.mark.parametrize("mode", ["transactional", "lease"])


def ask(mode: Any, key: str = "order-1") -> Asked:
    scope = Scope("orders.charge", mode=mode, lease=LEASE, ttl=TTL)
    return Asked(scope, key, request_hash="5f" * 32)


def store_at(url: str, later: timedelta = NO_TIME) -> Any:
    """Open the store in a world in which so much time has passed."""
    clock = ManualClock()
    clock.advance(later)
    return records_at(url, clock)


@dataclass
class Shop:
    """A place where orders are charged, and what is known outside of who was."""

    url: str
    file: str

    def charge(self, execution: Execution, die: str = "") -> Answer:
        """The operation: one effect, and an answer that says which execution it is of."""
        die_at("claimed", die)
        if execution.scope.mode == "transactional":
            execution.connection.execute("INSERT INTO ledger VALUES ('charged')")
        else:
            append(self.file, "charged")
        die_at("effected", die)
        return Answer(201, f'{{ "attempt": {execution.attempt} }}'.encode())

    def in_phases(self, execution: Execution, die: str = "") -> Answer:
        """The same by phases: one elsewhere, one with rows of the database."""
        charged = execution.phase("charge", lambda _: append(self.file, "charged"))
        die_at("charged", die)
        shipped = execution.phase("ship", self._ship)
        die_at("shipped", die)
        return Answer(201, f"{charged} {shipped}".encode())

    def _ship(self, phase: Phase) -> int:
        if is_redis(self.url):  # which has no rows of ours
            append(self.file, "shipped")
        else:
            phase.connection.execute("INSERT INTO ledger VALUES ('shipped')")
        return 7

    def ask(self, asked: Asked, later: timedelta = NO_TIME, operation: Any = None) -> Answered:
        """What another process answers so much later."""
        store = store_at(self.url, later)
        try:
            return Guard(store).execute(asked, operation or self.charge)
        finally:
            store.close()

    def record(self, asked: Asked) -> Any:
        store = store_at(self.url)
        try:
            return Guard(store).record(asked.id)
        finally:
            store.close()

    @property
    def effects(self) -> list[str]:
        """Everything that has happened, in the database and outside."""
        outside = Path(self.file).read_text().split()
        if is_redis(self.url):
            return outside
        store: Any = store_at(self.url)
        try:
            transaction = store.begin()
            rows = transaction.connection.execute("SELECT word FROM ledger").fetchall()
            transaction.roll_back()
        finally:
            store.close()
        return [word for (word,) in rows] + outside

    def dies(self, mode: str, work: Callable[..., None], *, at: str = "", **point: Any) -> None:
        """Let a process ask, and die: at a word of the operation, or at a point of a write."""
        if is_redis(self.url) and str(point.get("kill_at")).endswith(".inside"):
            pytest.skip("a function in Lua is one step: nothing is written and not committed")
        crashed = faults.run(work, self.url, self.file, mode, at, **point)
        assert crashed.killed, crashed.errors


def die_at(word: str, die: str) -> None:
    if word == die:
        os.kill(os.getpid(), signal.SIGKILL)


def append(file: str, word: str) -> str:
    """The effect that nobody can take back."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, f"{word}\n".encode())
    finally:
        os.close(fd)
    return word


def charging(url: str, file: str, mode: str, die: str) -> None:
    """The life of a child that charges an order."""
    shop = Shop(url, file)
    Guard(store_at(url)).execute(ask(mode), lambda execution: shop.charge(execution, die))


def charging_in_phases(url: str, file: str, mode: str, die: str) -> None:
    shop = Shop(url, file)
    Guard(store_at(url)).execute(ask(mode), lambda execution: shop.in_phases(execution, die))


@pytest.fixture
def shop(records_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    """A shop with its records anywhere; Redis has the mode `lease` alone."""
    callspec = getattr(request.node, "callspec", None)
    if is_redis(records_url) and callspec and callspec.params.get("mode") == "transactional":
        pytest.skip("Redis has no transaction to share")
    return opened(records_url, tmp_path)


@pytest.fixture
def sql_shop(shared_url: str, tmp_path: Path) -> Shop:
    """A shop whose records and rows are in one database."""
    return opened(shared_url, tmp_path)


def opened(url: str, folder: Path) -> Shop:
    file = folder / "ledger.txt"
    file.touch()
    if is_redis(url):
        return Shop(url, str(file))
    store: Any = store_at(url)
    transaction = store.begin()
    transaction.connection.execute("CREATE TABLE ledger (word TEXT)")
    transaction.commit()
    store.close()
    return Shop(url, str(file))


# --- a process dies ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "point"),
    [
        ("lease", "record.before"), ("lease", "record.inside"),
        ("transactional", "transaction.before"),
    ],
)  # fmt: skip
def test_who_dies_before_the_claim_commits_leaves_nothing_and_a_retry_executes(
    shop: Shop, mode: str, point: str
) -> None:
    shop.dies(mode, charging, kill_at=point)
    assert shop.record(ask(mode)) is None
    assert shop.effects == []
    assert shop.ask(ask(mode)) == Answered(Answer(201, b'{ "attempt": 1 }'), is_replay=False)
    assert shop.effects == ["charged"]


def test_who_dies_after_a_transactional_claim_leaves_nothing_and_a_retry_executes_at_once(
    sql_shop: Shop,
) -> None:
    shop = sql_shop
    shop.dies("transactional", charging, at="claimed")
    assert shop.record(ask("transactional")) is None
    answered = shop.ask(ask("transactional"))
    assert answered == Answered(Answer(201, b'{ "attempt": 1 }'), is_replay=False)
    assert shop.effects == ["charged"]


@pytest.mark.parametrize("death", [{"at": "claimed"}, {"kill_at": "record.after"}], ids=str)
def test_who_dies_after_a_leased_claim_is_left_alone_until_the_lease_ends_and_then_taken_over(
    shop: Shop, death: dict[str, str]
) -> None:
    shop.dies("lease", charging, **death)
    for later in (NO_TIME, LEASE - ONE_INSTANT):
        with pytest.raises(InProgress):
            shop.ask(ask("lease"), later)
    assert shop.effects == []
    answered = shop.ask(ask("lease"), LEASE)
    assert answered == Answered(Answer(201, b'{ "attempt": 2 }'), is_replay=False)
    assert shop.effects == ["charged"]


@pytest.mark.shows("I-35")
@pytest.mark.parametrize("death", [{"at": "effected"}, {"kill_at": "transaction.inside"}], ids=str)
def test_effects_of_a_transaction_that_dies_before_its_end_are_rolled_back_with_the_record(
    sql_shop: Shop, death: dict[str, str]
) -> None:
    shop = sql_shop
    shop.dies("transactional", charging, **death)
    assert shop.record(ask("transactional")) is None
    assert shop.effects == []
    assert not shop.ask(ask("transactional")).is_replay
    assert shop.effects == ["charged"]


@pytest.mark.parametrize(
    "death",
    [
        {"at": "effected"},
        {"kill_at": "record.before", "nth": 2},
        {"kill_at": "record.inside", "nth": 2},
    ],
    ids=str,
)
def test_without_a_recovery_point_a_leased_operation_that_died_runs_again(
    shop: Shop, death: dict[str, Any]
) -> None:
    shop.dies("lease", charging, **death)
    with pytest.raises(InProgress):
        shop.ask(ask("lease"))
    answered = shop.ask(ask("lease"), LEASE)
    assert answered == Answered(Answer(201, b'{ "attempt": 2 }'), is_replay=False)
    # What nobody could record may have happened: it is at least once, as documented.
    assert shop.effects == ["charged", "charged"]


@pytest.mark.shows("I-32")
@pytest.mark.parametrize(
    ("death", "effects"),
    [
        ({"at": "charged"}, ["charged"]),
        ({"kill_at": "transaction.inside"}, ["charged"]),
        ({"kill_at": "transaction.after"}, ["shipped", "charged"]),
        ({"at": "shipped"}, ["shipped", "charged"]),
    ],
    ids=str,
)
def test_a_takeover_resumes_at_the_recovery_point(
    sql_shop: Shop, death: dict[str, Any], effects: list[str]
) -> None:
    shop = sql_shop
    shop.dies("lease", charging_in_phases, **death)
    assert shop.effects == effects
    answered = shop.ask(ask("lease"), LEASE, shop.in_phases)
    # The data of what had ended is handed back, and nothing of it happens again.
    assert answered == Answered(Answer(201, b"charged 7"), is_replay=False)
    assert shop.effects == ["shipped", "charged"]


@pytest.mark.shows("I-32", "I-58")
@pytest.mark.parametrize(
    ("death", "first", "last"),
    [
        # The claim is the first write of the record, the end of a phase the second and the third.
        ({"kill_at": "record.before", "nth": 2}, ["charged"], ["charged", "charged", "shipped"]),
        ({"at": "charged"}, ["charged"], ["charged", "shipped"]),
        ({"kill_at": "record.after", "nth": 2}, ["charged"], ["charged", "shipped"]),
        ({"at": "shipped"}, ["charged", "shipped"], ["charged", "shipped"]),
        ({"kill_at": "record.before", "nth": 4}, ["charged", "shipped"], ["charged", "shipped"]),
    ],
    ids=str,
)
def test_with_records_in_redis_a_takeover_resumes_at_the_recovery_point(
    redis_url: str, tmp_path: Path, death: dict[str, Any], first: list[str], last: list[str]
) -> None:
    shop = opened(redis_url, tmp_path)
    shop.dies("lease", charging_in_phases, **death)
    assert shop.effects == first
    answered = shop.ask(ask("lease"), LEASE, shop.in_phases)
    assert answered == Answered(Answer(201, b"charged 7"), is_replay=False)
    assert shop.effects == last


@pytest.mark.shows("I-2", "I-4")
@pytest.mark.parametrize(
    ("mode", "point", "nth"),
    [("lease", "record.after", 2), ("transactional", "transaction.after", 1)],
)
def test_who_dies_after_completion_and_before_the_response_is_replayed(
    shop: Shop, mode: str, point: str, nth: int
) -> None:
    shop.dies(mode, charging, kill_at=point, nth=nth)
    for later in (NO_TIME, LEASE, TTL - ONE_INSTANT):
        answered = shop.ask(ask(mode), later)
        assert answered == Answered(Answer(201, b'{ "attempt": 1 }'), is_replay=True)
    assert shop.effects == ["charged"]


# --- several want the same --------------------------------------------------------------


@pytest.mark.shows("I-8", "I-10")
def test_of_many_duplicates_after_the_lease_one_takes_over_and_the_others_are_told(
    shop: Shop,
) -> None:
    shop.dies("lease", charging, at="claimed")
    outcomes = in_children(taking_over, shop)
    assert sorted(outcomes) == sorted(
        ["took over 2"] + ["idempotency_in_progress"] * (CHILDREN - 1)
    )
    assert shop.ask(ask("lease"), LEASE) == Answered(Answer(200, b"done"), is_replay=True)


def taking_over(shop: Shop, start: Any) -> str:
    guard = Guard(store_at(shop.url, LEASE))
    start.wait(PATIENCE_S)
    try:
        begun = guard.begin(ask("lease"))
    except IdempotencyError as error:
        begun = None
        code = error.code
    start.wait(PATIENCE_S)  # everybody has asked while the winner was at it
    if begun is None:
        return code
    assert isinstance(begun, Execution)
    begun.settle(Answer(200, b"done"))
    return f"took over {begun.attempt}"


@pytest.mark.shows("I-10", "I-24")
@MODES
def test_duplicates_at_the_instant_of_expiry_have_one_winner(shop: Shop, mode: str) -> None:
    store = store_at(shop.url)
    for key in KEYS:
        Guard(store).execute(ask(mode, key), lambda _: Answer(200, b"before"))
    store.close()
    outcomes = in_children(asking_at_expiry, shop, mode)
    for key in KEYS:
        about = [outcome for child in outcomes for outcome in child if outcome[0] == key]
        winners = [answer for _, what, answer in about if what == "executed"]
        assert len(winners) == 1, about
        told = {answer for _, what, answer in about if what == "replayed"}
        assert told <= set(winners)
    assert shop.effects == ["charged"] * len(KEYS)


def asking_at_expiry(shop: Shop, start: Any, mode: str) -> list[tuple[str, str, str]]:
    guard = Guard(store_at(shop.url, TTL))
    me = str(os.getpid())
    outcomes = []

    def charge(execution: Execution) -> Answer:
        shop.charge(execution)
        return Answer(200, me.encode())

    for key in KEYS:
        start.wait(PATIENCE_S)
        try:
            answered = guard.execute(ask(mode, key), charge)
        except InProgress:
            outcomes.append((key, "refused", ""))
        else:
            what = "replayed" if answered.is_replay else "executed"
            outcomes.append((key, what, answered.answer.body.decode()))
    return outcomes


def in_children(work: Callable[..., Any], shop: Shop, *arguments: Any) -> list[Any]:
    """Do the same in several processes, which meet at a barrier as often as they like."""
    context = forked()
    start, answers = context.Barrier(CHILDREN), context.Queue()
    children = [
        context.Process(target=_child, args=(work, shop, start, answers, arguments), daemon=True)
        for _ in range(CHILDREN)
    ]
    for child in children:
        child.start()
    try:
        return [answers.get(timeout=PATIENCE_S) for _ in children]
    finally:
        for child in children:
            child.join(PATIENCE_S)
        answers.close()


def _child(work: Any, shop: Shop, start: Any, answers: Any, arguments: Any) -> None:
    answers.put(work(shop, start, *arguments))


# --- an old owner wakes -----------------------------------------------------------------

BRIEF = Scope("orders.charge", mode="lease", lease=timedelta(seconds=1.5))
BRIEFLY = Asked(BRIEF, "order-1", request_hash="5f" * 32)


def test_an_old_owner_that_wakes_after_a_takeover_is_refused(shop: Shop) -> None:
    """In real time: a process that is stopped renews nothing, and one that runs does."""
    store = records_at(shop.url)
    guard = Guard(store)
    with owning(shop) as (pid, owner):
        deadline = monotonic() + 3 * BRIEF.lease.total_seconds()
        while monotonic() < deadline:  # its renewals keep everybody out
            with pytest.raises(InProgress):
                guard.begin(BRIEFLY)
        with nobody_writing(shop.url):
            os.kill(pid, signal.SIGSTOP)
        second = take_over(guard)
        assert second.attempt == 2
        second.settle(Answer(200, b"second"))
        owner.send("finish")
        os.kill(pid, signal.SIGCONT)
        assert owner.poll(PATIENCE_S)
        assert owner.recv() == ClaimLost.code
    assert guard.begin(BRIEFLY) == Answer(200, b"second")
    store.close()


@contextmanager
def nobody_writing(url: str) -> Iterator[None]:
    """Hold the lock of an SQLite file: who is stopped as it renews would keep it for ever."""
    if not url.startswith("sqlite"):
        yield
        return
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.rollback()


def take_over(guard: Guard) -> Execution:
    """Ask until the lease has lapsed."""
    deadline = monotonic() + PATIENCE_S
    while monotonic() < deadline:
        try:
            begun = guard.begin(BRIEFLY)
        except InProgress:
            continue
        assert isinstance(begun, Execution)
        return begun
    raise AssertionError("the lease of a stopped process never lapsed")


@contextmanager
def owning(shop: Shop) -> Iterator[tuple[int, Connection]]:
    """A process that has claimed the key and waits for a word to finish."""
    context = forked()
    here, there = context.Pipe()
    child = context.Process(target=_own, args=(shop, there), daemon=True)
    child.start()
    try:
        assert here.poll(PATIENCE_S)
        assert here.recv() == "claimed"
        assert child.pid is not None
        yield child.pid, here
    finally:
        child.kill()
        child.join(PATIENCE_S)
        here.close()


def _own(shop: Shop, there: Connection) -> None:
    store = records_at(shop.url)
    begun = Guard(store).begin(BRIEFLY)
    assert isinstance(begun, Execution)
    there.send("claimed")
    there.recv()
    try:
        begun.settle(Answer(200, b"first"))
        there.send("settled")
    except IdempotencyError as error:
        there.send(error.code)


# --- a record goes away meanwhile -------------------------------------------------------


@pytest.mark.shows("I-23")
@MODES
def test_cleaning_up_between_conflict_and_read_is_no_error(shop: Shop, mode: Any) -> None:
    store = records_at(shop.url)
    guard = Guard(store)
    # So short that a record expires while others ask for it.
    scope = Scope("orders.charge", mode=mode, ttl=timedelta(milliseconds=1))
    is_over = threading.Event()
    removed: list[int] = []
    runs: list[str] = []
    told: list[str] = []
    failures: list[BaseException] = []

    def clean() -> None:
        while not is_over.is_set():
            removed.append(guard.clean_up())

    def client(name: int) -> None:
        try:
            for n in range(40):
                asked = Asked(scope, f"order-{n % 3}", request_hash="5f" * 32)
                try:
                    answered = guard.execute(asked, lambda _: Answer(200, b"1"))
                except InProgress:
                    told.append("in progress")
                else:
                    (told if answered.is_replay else runs).append("answered")
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(6)]
    cleaner = threading.Thread(target=clean)
    for thread in [cleaner, *threads]:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    is_over.set()
    cleaner.join(PATIENCE_S)
    store.close()
    assert failures == []
    assert len(runs) + len(told) == 240
    assert (sum(removed) > 0) is not store.features.removes_expired
    assert len(runs) > 3


def test_a_record_that_a_claim_has_met_is_there_until_its_transaction_ends(sql_shop: Shop) -> None:
    """Why the claim need not be tried again: what it has met is locked by it."""
    shop = sql_shop
    store: Any = store_at(shop.url)
    if store.features.one_writer:
        store.close()
        pytest.skip("nobody cleans up beside the one writer")
    Guard(store).execute(ask("lease"), lambda _: Answer(200, b"1"))
    row = Guard(store).record(ask("lease").id)
    later = store_at(shop.url, TTL)
    transaction = store.begin()
    claim = transaction.claim_record(row._replace(status=PROCESSING), ttl_us=1, lease_us=None)
    assert (claim.row.status, later.clean_records(10)) == (COMPLETED, 0)
    transaction.roll_back()
    assert later.clean_records(10) == 1
    later.close()
    store.close()
