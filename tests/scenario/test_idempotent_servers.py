"""Two servers on one store are asked the same many times, at once and again: it is done once."""

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.scenario.idempotent_servers import (
    HELD,
    PATIENCE_S,
    Site,
    Told,
    at_once,
    bodies_of,
    change,
)

CROWD = 100
KEYS, REPEATS, CLIENTS = 200, 5, 24

COUNTS = """SELECT
    (SELECT count(*) FROM {schema}.hos_proofs),
    (SELECT count(*) FROM {schema}.idempotency_records),
    (SELECT count(*) FROM {schema}.hos_contract_subjects WHERE version = 1),
    (SELECT count(*) FROM {schema}.hos_contract_subjects WHERE version <> 1)
"""


@pytest.mark.shows("I-2", "I-8", "I-10")
def test_of_a_hundred_requests_to_two_servers_at_once_one_is_executed(site: Site) -> None:
    servers = site.start()
    answers = at_once(
        [partial(servers[n % 2].ask, change("k")) for n in range(CROWD)], clients=CROWD
    )
    answered_once(answers)
    assert site.sql(COUNTS) == [(1, 1, 1, 0)]
    # Nobody executes now, so everybody is told what the first was.
    again = at_once([partial(server.ask, change("k")) for server in servers], clients=2)
    assert all(answer.is_replay for answer in again)
    assert len(bodies_of([*again, *(a for a in answers if a.status == 200)])) == 1
    assert site.verify_proofs() == {"tenants": 1, "proofs": 1, "broken": []}


@pytest.mark.shows("I-8", "I-10")
def test_whoever_asks_while_it_is_executed_is_told_so_by_either_server(site: Site) -> None:
    servers = site.start(lock_wait_ms=50)
    ask = [partial(servers[n % 2].ask, change("k", id=HELD)) for n in range(CROWD)]
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(ask[0])
        try:
            site.await_holding()
            others = at_once(ask[1:], clients=CROWD)
        finally:
            site.release()
        answer = first.result(PATIENCE_S)
    assert [other for other in others if not other.is_in_progress] == []
    assert (answer.status, answer.is_replay) == (200, False)
    again = at_once(ask, clients=CLIENTS)
    assert all(one.is_replay for one in again)
    assert bodies_of(again) == {answer.body}
    assert site.sql(COUNTS) == [(1, 1, 1, 0)]
    assert site.verify_proofs() == {"tenants": 1, "proofs": 1, "broken": []}


@pytest.mark.shows("I-2", "I-8", "I-10")
def test_each_of_many_keys_is_executed_once_wherever_and_however_often_it_is_asked(
    site: Site,
) -> None:
    servers = site.start()
    keys = [f"k{n}" for n in range(KEYS)] * REPEATS
    draw = random.Random(10)  # noqa: S311 - a seed that can be replayed
    draw.shuffle(keys)
    calls = [partial(draw.choice(servers).ask, change(key, id=key)) for key in keys]
    answers_of: dict[str, list[Told]] = {key: [] for key in keys}
    for key, answer in zip(keys, at_once(calls, clients=CLIENTS), strict=True):
        answers_of[key].append(answer)
    for answers in answers_of.values():
        answered_once(answers)
    assert site.sql(COUNTS) == [(KEYS, KEYS, KEYS, 0)]

    again = at_once(
        [partial(draw.choice(servers).ask, change(key, id=key)) for key in answers_of],
        clients=CLIENTS,
    )
    for answer, before in zip(again, answers_of.values(), strict=True):
        assert answer.is_replay
        assert {answer.body} == bodies_of(one for one in before if one.status == 200)
    assert site.sql(COUNTS) == [(KEYS, KEYS, KEYS, 0)]
    assert site.verify_proofs() == {"tenants": 1, "proofs": KEYS, "broken": []}


def answered_once(answers: list[Told]) -> None:
    """One was executed; the others were told what it was told, or that it is being executed."""
    told = [answer for answer in answers if not answer.is_in_progress]
    assert {answer.status for answer in told} == {200}, bodies_of(told)
    assert [answer.is_replay for answer in told].count(False) == 1
    assert len(bodies_of(told)) == 1


@pytest.mark.shows("I-2", "I-3", "I-4")
def test_servers_that_are_started_anew_answer_what_was_answered_before(site: Site) -> None:
    one, other = site.start()
    before = [ask(server) for ask, server in zip(STORY, [one, other] * len(STORY), strict=False)]
    assert [answer.status for answer in before] == [200, 200, 422, 409, 201]
    assert not any(answer.is_replay for answer in before)
    counts = site.sql(COUNTS)
    one.stop()
    other.kill()

    for server in site.start():
        again = [ask(server) for ask in STORY]
        assert all(answer.is_replay for answer in again)
        assert [told(answer) for answer in again] == [told(answer) for answer in before]
    assert site.sql(COUNTS) == counts == [(1, 5, 1, 0)]
    assert site.sql("SELECT count(*) FROM {schema}.jobs WHERE flow = 'greet'") == [(1,)]
    assert site.verify_proofs() == {"tenants": 1, "proofs": 1, "broken": []}


STORY = (
    lambda server: server.ask(change("changes")),
    lambda server: server.ask(change("stands-there-already") | {"from": "paid"}),
    lambda server: server.ask(change("is-refused", to="pending") | {"from": "paid"}),
    lambda server: server.ask(change("is-stale", to="cancelled")),
    lambda server: server.ask(
        {"flow": "greet", "payload": ["ada"]}, "/jobs", Idempotency_Key="submits"
    ),
)
"""A change, what changes nothing, a refusal, one of a caller who is late, and a job."""


def told(answer: Told) -> tuple[object, ...]:
    """All of an answer that must be the same each time it is given."""
    kept = ("Content-Type", "Location", "Idempotency-Key")
    return answer.status, answer.body, [answer.headers.get(name) for name in kept]
