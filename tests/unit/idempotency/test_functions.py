"""Protected functions: plain ones, asynchronous ones, and stages of jobs."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from ulak import Flow, Lifecycle
from ulak.clock import ManualClock
from ulak.errors import BadKey, IdempotencyConflict
from ulak.idempotency import Guard, Scope, current, idempotent
from ulak.store.memory import MemoryStore
from ulak.store.sqlite import SqliteStore
from ulak.testing import Harness

LEASE = Scope("orders.charge", mode="lease")


@dataclass(frozen=True)
class Receipt:
    order: str
    cents: int


def key(order: str, *_: Any, **__: Any) -> str:
    return order


@pytest.mark.shows("I-27", "I-2")
def test_a_function_runs_once_per_key_and_returns_the_same_again(
    guard: Guard, scope: Scope
) -> None:
    runs: list[str] = []

    @idempotent(guard, scope, key=key)
    def charge(order: str, cents: int = 100) -> Receipt:
        """Charge an order."""
        runs.append(order)
        return Receipt(order, cents)

    assert [charge("a"), charge("a", 100), charge(order="a", cents=100)] == [Receipt("a", 100)] * 3
    assert charge("b", 7) == Receipt("b", 7)
    assert runs == ["a", "b"]
    assert (charge.__name__, charge.__doc__) == ("charge", "Charge an order.")


@pytest.mark.shows("I-7", "I-27")
def test_other_arguments_under_the_same_key_are_a_conflict(guard: Guard, scope: Scope) -> None:
    @idempotent(guard, scope, key=key)
    def charge(order: str, cents: int = 100) -> int:
        return cents

    charge("a")
    with pytest.raises(IdempotencyConflict):
        charge("a", 101)
    assert charge("a") == 100


@pytest.mark.shows("I-14")
def test_only_the_arguments_that_are_named_count(guard: Guard) -> None:
    scope = Scope("orders.charge", mode="lease", fingerprint_fields=("order",))

    @idempotent(guard, scope, key=key)
    def charge(order: str, cents: int = 100) -> int:
        return cents

    assert [charge("a", 1), charge("a", 2)] == [1, 1]


@pytest.mark.shows("I-6", "I-13")
def test_tenant_and_actor_are_made_from_the_arguments(guard: Guard, scope: Scope) -> None:
    @idempotent(
        guard, scope, key=key, tenant=lambda order, shop, by: shop, actor=lambda order, shop, by: by
    )
    def charge(order: str, shop: str, by: str) -> str:
        return f"{shop}:{order}"

    assert charge("a", "acme", "ada") == "acme:a"
    assert charge("a", "umbrella", "ada") == "umbrella:a"
    with pytest.raises(IdempotencyConflict):
        charge("a", "acme", "eve")


@pytest.mark.shows("I-5")
@pytest.mark.parametrize("order", ["", "two words", "k" * 256])
def test_a_key_that_is_none_is_refused_before_anything_runs(guard: Guard, order: str) -> None:
    @idempotent(guard, LEASE, key=key)
    def charge(order: str) -> None:
        raise AssertionError("this must not be executed")

    with pytest.raises(BadKey):
        charge(order)


@pytest.mark.shows("I-19")
def test_an_exception_is_let_out_and_the_next_call_tries_again(guard: Guard, scope: Scope) -> None:
    tries: list[str] = []

    @idempotent(guard, scope, key=key)
    def charge(order: str) -> int:
        tries.append(order)
        if len(tries) == 1:
            raise RuntimeError("boom")
        return len(tries)

    with pytest.raises(RuntimeError, match="boom"):
        charge("a")
    assert [charge("a"), charge("a")] == [2, 2]


def test_rows_that_a_function_writes_commit_with_its_record(
    guard: Guard, sqlite: SqliteStore
) -> None:
    transaction = sqlite.begin()
    transaction.connection.execute("CREATE TABLE orders (n INTEGER)")
    transaction.commit()

    @idempotent(guard, Scope("orders.charge"), key=key)
    def charge(order: str, cents: int = 100) -> int:
        current().connection.execute("INSERT INTO orders VALUES (?)", (cents,))
        if cents < 0:
            raise ValueError("nothing to charge")
        return cents

    charge("a")
    charge("a")
    with pytest.raises(ValueError, match="nothing"):
        charge("b", -1)
    transaction = sqlite.begin()
    assert transaction.connection.execute("SELECT n FROM orders").fetchall() == [(100,)]
    transaction.roll_back()


# --- on a loop -------------------------------------------------------------------------


@pytest.mark.shows("I-27")
def test_an_async_function_runs_once_per_key(guard: Guard, scope: Scope) -> None:
    runs: list[str] = []

    @idempotent(guard, scope, key=key)
    async def charge(order: str, cents: int = 100) -> Receipt:
        await asyncio.sleep(0)
        assert current().attempt == 1
        runs.append(order)
        return Receipt(order, cents)

    async def main() -> list[Receipt]:
        return [await charge("a"), await charge("a"), await charge("b")]

    assert asyncio.run(main()) == [Receipt("a", 100), Receipt("a", 100), Receipt("b", 100)]
    assert runs == ["a", "b"]


@pytest.mark.shows("I-19")
def test_a_cancelled_async_function_stores_nothing(guard: Guard, scope: Scope) -> None:
    begun, tries = asyncio.Event(), []

    @idempotent(guard, scope, key=key)
    async def charge(order: str) -> int:
        tries.append(order)
        if len(tries) == 1:
            begun.set()
            await asyncio.Event().wait()
        return len(tries)

    async def main() -> int:
        first = asyncio.create_task(charge("a"))
        await begun.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await charge("a")

    assert asyncio.run(main()) == 2


def test_a_call_that_is_cancelled_while_it_claims_leaves_no_claim_behind(
    guard: Guard, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    claiming, may_claim = threading.Event(), threading.Event()

    def slowly(begin: Callable[[Any], Any], asked: Any) -> Any:
        claiming.set()
        may_claim.wait(120)
        return begin(asked)

    @idempotent(guard, scope, key=key)
    async def charge(order: str) -> int:
        return 1

    async def main() -> int:
        with monkeypatch.context() as slow:
            # Somebody is in the way, so that a thread waits: for the claim, or for the turn.
            slow.setattr(guard, "begin", partial(slowly, guard.begin))
            slow.setattr(guard, "open", partial(slowly, guard.open))
            slow.setattr(guard, "open_at_once", lambda asked: None)
            first = asyncio.create_task(charge("a"))
            await asyncio.to_thread(claiming.wait, 10)
            first.cancel()
            await asyncio.sleep(0)
            may_claim.set()
            with pytest.raises(asyncio.CancelledError):
                await first
        return await charge("a")

    assert asyncio.run(main()) == 1


# --- as stages of jobs -----------------------------------------------------------------


def shop(guard: Guard, effects: list[Any], *, is_async: bool = False) -> Flow[Any]:
    """A flow whose one stage is protected by the number of the order."""
    flow: Flow[Any] = Flow(
        "order", Lifecycle("new", {"new": ["paid"], "paid": []}, done="paid"), retry=5
    )
    protect = idempotent(guard, LEASE, key=lambda run: f"charge:{run.payload['order']}")

    def effect(run: Any) -> dict[str, Any]:
        effects.append((run.tenant, run.payload["order"]))
        return {"receipt": len(effects)}

    if is_async:

        @flow.stage("new", to="paid")
        @protect
        async def charge_async(run: Any) -> dict[str, Any]:
            return effect(run)

        return flow

    @flow.stage("new", to="paid")
    @protect
    def charge(run: Any) -> dict[str, Any]:
        return effect(run)

    return flow


@pytest.mark.shows("I-27")
@pytest.mark.parametrize("is_async", [False, True])
def test_the_second_job_with_the_same_key_does_not_run_the_effect(
    clock: ManualClock, is_async: bool
) -> None:
    effects: list[Any] = []
    store = MemoryStore(clock=clock)
    flow = shop(Guard(store), effects, is_async=is_async)
    with Harness(flow, clock=clock) as harness:
        jobs = [
            harness.submit(flow, {"order": 7}),
            harness.submit(flow, {"order": 7}),
            harness.submit(flow, {"order": 8}),
            harness.submit(flow, {"order": 7}, tenant="acme"),
        ]
        harness.run_until_idle()
        # Who met the first while it ran is told so, and tries again.
        harness.advance(hours=1)
        harness.run_until_idle()
        assert [harness.engine.get(job.id).state for job in jobs] == ["paid"] * 4
    assert sorted(effects) == [("", 7), ("", 8), ("acme", 7)]


@pytest.mark.shows("I-27")
def test_a_stage_that_fails_is_tried_again_and_its_key_is_free(clock: ManualClock) -> None:
    guard, tries = Guard(MemoryStore(clock=clock)), []
    flow: Flow[Any] = Flow(
        "order", Lifecycle("new", {"new": ["paid"], "paid": []}, done="paid"), retry=2
    )

    @flow.stage("new", to="paid")
    @idempotent(guard, LEASE, key=lambda run: "charge")
    def charge(run: Any) -> int:
        tries.append(run.attempt)
        if len(tries) == 1:
            raise RuntimeError("boom")
        return 1

    with Harness(flow, clock=clock) as harness:
        job = harness.submit(flow, {})
        harness.run_until_idle()
        harness.advance(hours=1)
        harness.run_until_idle()
        assert harness.engine.get(job.id).state == "paid"
    assert tries == [1, 2]


def test_a_replay_is_read_as_the_type_that_is_declared(guard: Guard) -> None:
    @idempotent(guard, LEASE, key=key)
    def when(order: str) -> timedelta:
        return timedelta(seconds=90)

    assert [when("a"), when("a")] == [timedelta(seconds=90)] * 2
