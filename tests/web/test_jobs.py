"""The list of jobs over HTTP."""

import asyncio
import re

import pytest

import ulak.web
from ulak.clock import rfc3339

PROBLEM = {"type", "title", "status", "detail", "code", "retryable", "correlation_id"}


@pytest.fixture
def app(engine):
    return ulak.web.app(engine, identity=None)


def test_jobs_are_listed_newest_first_with_times_in_utc(engine, ask, app):
    ids = [engine.submit(engine.greet, name).id for name in "ab"]
    answer = ask(app, "/jobs")
    assert answer.status_code == 200
    document = answer.json()
    assert [job["id"] for job in document["items"]] == ids[::-1]
    assert document["next"] is None
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", document["items"][0]["created_at"]
    )


def test_filters_go_by_name(engine, ask, app):
    mine = engine.submit(engine.greet, "a", tenant="mine").id
    engine.submit(engine.greet, "b", tenant="other")
    done = engine.submit(engine.greet, "c").id
    for params, ids in [
        ({"tenant": "mine"}, [mine]),
        ({"tenant": "nobody"}, []),
        ({"role": "done"}, []),
        ({"state": "queued", "tenant": ""}, [done]),
        ({"flow": "greet", "queue": "greet", "tenant": "mine"}, [mine]),
        ({"code": "raised"}, []),
    ]:
        listed = ask(app, "/jobs", params=params).json()["items"]
        assert [job["id"] for job in listed] == ids, params
    asyncio.run(engine.worker().run(until_idle=True))
    assert len(ask(app, "/jobs", params={"role": "done"}).json()["items"]) == 3


def test_pages_follow_each_other_without_a_gap(engine, ask, app):
    ids = [engine.submit(engine.greet, str(n)).id for n in range(5)]
    seen, after = [], {}
    while after is not None:
        page = ask(app, "/jobs", params={"limit": 2, **after}).json()
        seen += [job["id"] for job in page["items"]]
        after = {"after": page["next"]} if page["next"] else None
    assert seen == ids[::-1]


@pytest.mark.shows("E-75")
def test_filters_go_by_time_id_key_and_owner(engine, ask, app):
    @engine.job(owners=True)
    def own(name: str) -> None: ...

    first = engine.submit(own, "a", actor="ada", dedup_key="k")
    engine.submit(own, "a", actor="bob", dedup_key="k")
    second = engine.submit(own, "b", actor="bob", priority=0)
    at = {job.id: rfc3339(job.created_at) for job in (first, second)}
    for params, jobs in [
        ({"owner": "ada"}, [first]),
        ({"owner": "bob"}, [second, first]),
        ({"owner": "eve"}, []),
        ({"dedup_key": "k"}, [first]),
        ({"id_prefix": second.id[:-1], "submitted_since": at[second.id]}, [second]),
        ({"submitted_since": at[second.id], "owner": "bob"}, [second]),
        ({"submitted_before": at[second.id]}, [first]),
        ({"changed_since": at[first.id], "changed_before": at[second.id]}, [first]),
    ]:
        listed = ask(app, "/jobs", params=params).json()["items"]
        assert [job["id"] for job in listed] == [job.id for job in jobs], params


@pytest.mark.shows("E-75")
def test_a_list_says_when_no_index_serves_it(ask, app):
    assert ask(app, "/jobs").json()["unserved"] is None
    assert ask(app, "/jobs?owner=ada").json()["unserved"] is None
    said = ask(app, "/jobs?flow=greet&state=queued").json()["unserved"]
    assert said.startswith("no index serves flow= and state=")


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=1001", "limit=x", "limit=", "limit=1e2", "limit=99999999999999999999",
        "role=asleep", "after=7", "after=", "after=%00", "colour=red", "Flow=greet",
        "submitted_since=yesterday", "changed_before=2026-01-31", "submitted_before=1",
        "id_prefix=xyz", "id_prefix=", "owner=%00", "dedup_key=a%00",
    ],
)  # fmt: skip
def test_parameters_that_cannot_be_used_are_422_problems(ask, app, query):
    answer = ask(app, f"/jobs?{query}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document.keys() >= PROBLEM
    assert (document["status"], document["code"], document["retryable"]) == (
        422,
        "bad-input",
        False,
    )


@pytest.mark.parametrize("query", ["flow=%00", "tenant=%ff%fe", "state=%F0%9F%92%A9", "code='--"])
def test_strange_texts_find_nothing(ask, app, query):
    answer = ask(app, f"/jobs?{query}")
    assert (answer.status_code, answer.json()["items"]) == (200, [])
