"""Clients ask two servers under the same keys, one of which is killed and started anew.

What they were told is recorded, and searched for an order that explains it. A value is the whole
answer, so that a replay must be it to the byte.
"""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from threading import Event

import httpx
import pytest

from tests.scenario.idempotent_servers import HELD, PATIENCE_S, Server, Site, change
from ulak.testing import histories as told
from ulak.testing.histories import Call, History, read_history
from ulak.testing.linearizability import check

CLIENTS, ROUNDS, KEYS_AT_A_TIME = 8, 40, 2
# So short that duplicates are told to come again, so long that most others get their turn.
LOCK_WAIT_MS = 40
USUAL, ANOTHER = "paid", "cancelled"

# Which request has left which proof, and what is stored as its answer.
EFFECTS = """
SELECT p.request_id, k.response_json FROM {schema}.hos_proofs AS p
LEFT JOIN {schema}.idempotency_records AS k ON k.key = p.idempotency_key
"""

MOVED_AGAIN = "SELECT count(*) FROM {schema}.hos_contract_subjects WHERE version <> 1"


class Story:
    """The servers as they come and go, and who asks them."""

    def __init__(self, site: Site, history: History) -> None:
        self.site = site
        self.servers = site.start(lock_wait_ms=LOCK_WAIT_MS)
        self.half_is_over, self.is_whole_again = Event(), Event()
        self._history = history

    def client(self, name: str) -> None:
        """Ask again and again, of either server; for the last quarter both are there."""
        draw = random.Random(name)  # noqa: S311 - a seed that can be replayed
        for n in range(ROUNDS):
            if n == ROUNDS // 2:
                self.half_is_over.set()
            if n == ROUNDS * 3 // 4:
                assert self.is_whole_again.wait(PATIENCE_S)
            # Every few rounds all go on to other keys; at last some ask what the killed one did.
            key = f"order-{n // 5}-{draw.randrange(KEYS_AT_A_TIME)}"
            if n >= ROUNDS * 3 // 4 and draw.random() < 0.2:
                key = HELD
            to = ANOTHER if draw.random() < 0.15 else USUAL
            self.ask(draw.choice(self.servers), f"{name}-{n}", key, to)

    def ask(self, server: Server, request: str, key: str, to: str = USUAL) -> str:
        """Ask for one change, write down and answer what came of it.

        The id of the request is no part of what is asked: it tells whose execution a proof is of.
        """
        call = self._history.invoke(request, key=key, asked=to, offers=request)
        outcome, value = _asked(server, change(key, id=key, to=to, request_id=request))
        call.returns(outcome, value)
        return outcome

    def ask_until_held(self, server: Server) -> str:
        """Ask for the change that is held up; on SQLite the others may leave no turn for it."""
        for n in count():
            outcome = self.ask(server, f"lost-{n}", HELD)
            if outcome != told.UNDONE:
                return outcome
        raise AssertionError

    def kill_one_in_the_middle(self) -> None:
        """Kill a server that executes, while the other says that it does; start another."""
        assert self.half_is_over.wait(PATIENCE_S)
        survivor, doomed = self.servers
        with ThreadPoolExecutor(1) as thread:
            lost = thread.submit(self.ask_until_held, doomed)
            try:
                self.site.await_holding()
                assert self.ask(survivor, "meanwhile", HELD) == told.IN_PROGRESS
            finally:
                doomed.kill()
                self.site.release()
            assert lost.result(PATIENCE_S) == told.UNKNOWN
        self.servers = [survivor]
        self.servers = [survivor, *self.site.start(1, lock_wait_ms=LOCK_WAIT_MS)]
        self.is_whole_again.set()


def _asked(server: Server, body: dict[str, object]) -> tuple[str, str]:
    """Ask, and say in the words of histories what came of it."""
    try:
        answer = server.ask(body)
    except httpx.ConnectError:
        return told.UNAVAILABLE, ""
    except httpx.TransportError:
        return told.UNKNOWN, ""
    if answer.status == 200:
        return (told.REPLAYED if answer.is_replay else told.EXECUTED), answer.body.decode()
    if answer.is_in_progress:
        return told.IN_PROGRESS, ""
    codes = {
        (422, "idempotency_key_reused"): told.CONFLICT,
        # Who has claimed and then waits too long for the head of the chain is told the same.
        (503, "idempotency_store_unavailable"): told.UNDONE,
    }
    return codes[answer.status, answer.document["code"]], ""


@pytest.mark.shows("I-2", "I-8", "I-10")
def test_what_clients_of_two_servers_were_told_can_be_though_one_was_killed(site: Site) -> None:
    history = History(site.folder / "history.jsonl")
    story = Story(site, history)
    with ThreadPoolExecutor(CLIENTS) as threads:
        asking = [threads.submit(story.client, f"c{n}") for n in range(CLIENTS)]
        try:
            story.kill_one_in_the_middle()
        finally:
            story.is_whole_again.set()
        for client in asking:
            client.result(PATIENCE_S)
    history.close()

    effects = dict(site.sql(EFFECTS))
    # Nobody can say beforehand which number his proof will have, so it is filled in now.
    calls = [
        replace(call, offers=effects.get(call.offers) or call.offers)
        for call in read_history(history.path)
    ]
    assert check(calls) == []
    # A history in which nothing happens shows nothing.
    outcomes = Counter(call.outcome for call in calls)
    for outcome in (told.EXECUTED, told.REPLAYED, told.IN_PROGRESS, told.CONFLICT, told.UNKNOWN):
        assert outcomes[outcome] > 0, outcomes
    each_effect_is_that_of_an_execution(effects, calls)
    assert site.sql(MOVED_AGAIN) == [(0,)]
    lies_are_found_out(calls)
    report = site.verify_proofs()
    assert (report["proofs"], report["broken"]) == (len(effects), [])


def each_effect_is_that_of_an_execution(effects: dict[str, str], calls: list[Call]) -> None:
    """There is a proof of what was executed, of what nobody was told perhaps, else none."""
    executed = {call.client for call in calls if call.outcome == told.EXECUTED}
    unknown = {call.client for call in calls if call.outcome == told.UNKNOWN}
    assert executed <= set(effects) <= executed | unknown
    assert None not in effects.values()


def lies_are_found_out(calls: list[Call]) -> None:
    """Change one line of the history, so that it cannot be any more: the check must say so."""
    executed = {call.key: call for call in calls if call.outcome == told.EXECUTED}
    known = [call for call in calls if call.key in executed]
    replayed = next(call for call in known if call.outcome == told.REPLAYED)
    first = executed[replayed.key]
    in_progress = next(call for call in known if call.outcome == told.IN_PROGRESS)
    at_last = max(call.returned_at or call.invoked_at for call in calls) + 1
    lies = {
        "another answer": (replayed, replace(replayed, value=replayed.value + " ")),
        "executed again": (
            replayed, replace(replayed, outcome=told.EXECUTED, value=replayed.offers),
        ),
        "executed for somebody else": (first, replace(first, value=replayed.offers)),
        "in progress after the end": (
            in_progress, replace(in_progress, invoked_at=at_last, returned_at=at_last + 1),
        ),
        "another request replayed": (replayed, replace(replayed, asked="something else")),
    }  # fmt: skip
    for name, (truth, lie) in lies.items():
        found = check([lie if call is truth else call for call in calls])
        assert [violation.key for violation in found] == [truth.key], name
