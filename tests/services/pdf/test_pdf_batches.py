"""Batches: many documents in one request, each answered as if it had been asked for alone."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services.pdf.desk import INVOICE, Desk, config_of, payload
from tests.services.pdf.site import CONFIG, DATABASES, TEMPLATE, Site, credential_of, database
from ulak.services.pdf import callbacks, submission
from ulak.services.pdf.batches import split_batch
from ulak.services.pdf.jobs import Created
from ulak.services.pdf.responses import Refusal
from ulak.services.pdf.submission import NewPdfJob
from ulak.store.protocol import JobFilter
from ulak.testing import faults

SECRET = "Zeynep-4711-private"  # noqa: S105 - a variable that no answer and no log may tell
CALLBACK = "https://shop.example.org/done"


def sited(url: str, folder: Path, **settings: Any) -> Site:
    """A site with a worker that lives."""
    made = Site(url, folder, config=replace(CONFIG, **settings))
    made.heartbeat()
    return made


@pytest.fixture(params=DATABASES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    security = replace(CONFIG.security, callback_allowlist=(r"https://shop\.example\.org/.*",))
    with database(request, tmp_path) as url:
        made = sited(url, tmp_path, security=security, callback_secret="s" * 32)
        yield made
        made.close()


@pytest.fixture
def open_small(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Sites on SQLite, for what has nothing to do with the store."""
    made: list[Site] = []

    def start(**settings: Any) -> Site:
        url = f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL"
        made.append(sited(url, tmp_path, **settings))
        return made[-1]

    yield start
    for site in made:
        site.close()


@pytest.fixture
def small(open_small: Callable[..., Site]) -> Site:
    return open_small()


def letter(name: Any = "Ada", **more: Any) -> dict[str, Any]:
    return {"template_name": TEMPLATE, "variables": {"name": name}, **more}


def send(site: Site, *jobs: Any, **options: Any) -> httpx.Response:
    return site.ask("POST", "/pdf/batches", json={"jobs": list(jobs)}, **options)


def results(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 207, answer.text
    found: list[dict[str, Any]] = answer.json()["results"]
    assert [each["index"] for each in found] == list(range(len(found)))
    return found


def statuses(answer: httpx.Response) -> list[int]:
    return [each["status"] for each in results(answer)]


# --- partial results ------------------------------------------------------------


@pytest.mark.shows("P-52")
def test_every_job_of_a_batch_has_a_result_of_its_own_in_order(site: Site) -> None:
    known = site.new("known")
    site.finish(known)
    answer = send(
        site, letter("a"), letter(template_name="payroll"), letter("b", colour="red"),
        letter("known"), "no job", letter("c"),
    )  # fmt: skip
    first, template, colour, there, text, last = results(answer)
    assert [first["status"], there["status"], last["status"]] == [202, 202, 202]
    assert (template["status"], template["error_code"]) == (400, "TEMPLATE_ERROR")
    assert (colour["status"], colour["error_code"]) == (422, "VALIDATION_ERROR")
    [field] = colour["details"]["fields"]
    assert field == {"field": "colour", "message": "there is no such field"}
    assert (text["status"], text["error_code"]) == (422, "VALIDATION_ERROR")
    assert (there["job_id"], there["job_status"], there["deduplicated"]) == (
        known, "succeeded", True,
    )  # fmt: skip
    assert "retry_after_seconds" not in there
    for each in (first, last):
        assert set(each) == {
            "index", "status", "job_id", "job_status", "created_at", "deduplicated",
            "retry_after_seconds",
        }  # fmt: skip
        assert (each["job_status"], each["deduplicated"]) == ("queued", False)
        assert each["retry_after_seconds"] >= 1
        job = site.status(each["job_id"])
        assert (job["status"], job["created_at"]) == ("queued", each["created_at"])
    assert site.count() == 3


WRONG = {
    "no object": b"[1]",
    "no variables": b'{"template_name": "letter"}',
    "an unknown field": b'{"template_name": "letter", "variables": {}, "colour": 1}',
    "a member twice": b'{"template_name": "letter", "variables": {"a": 1, "a": 2}}',
    "no number": b'{"template_name": "letter", "variables": {"a": NaN}}',
    "a number too large": b'{"template_name": "letter", "variables": {"a": 99999999999999999999}}',
    "half a character": b'{"template_name": "letter", "variables": {"a": "\\ud800"}}',
    "a timeout": b'{"template_name": "letter", "variables": {}, "options": {"timeout": 301}}',
    "a priority": b'{"template_name": "letter", "variables": {}, "options": {"priority": 0}}',
    "a page option": b'{"template_name": "letter", "variables": {}, "options": {"page": '
    b'{"ranges": "1"}}}',
    "a callback": b'{"template_name": "letter", "variables": {}, "options": {"callback_url": '
    b'"https://elsewhere.example"}}',
    "a template not allowed": b'{"template_name": "payroll", "variables": {}}',
    "a template not there": b'{"template_name": "absent", "variables": {}}',
}


@pytest.mark.shows("P-52")
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_a_create_refuses_a_batch_refuses_with_the_same_words(
    wrong: bytes, small: Site
) -> None:
    good = json.dumps(letter()).encode()
    alone = small.ask("POST", "/pdf/jobs", content=wrong)
    assert alone.status_code in (400, 422)
    body = b'{"jobs": [' + good + b", " + wrong + b" ]}"
    accepted, refused = results(small.ask("POST", "/pdf/batches", content=body))
    assert accepted["status"] == 202, "the other one is none the worse for it"
    said = alone.json()
    assert refused["status"] == said["status"]
    for member in ("error_code", "message", "details"):
        assert refused.get(member) == said.get(member)
    assert small.count() == 1


BROKEN = {
    "nothing": (b"", "body"),
    "a list": (b"[]", "body"),
    "cut off": (b'{"jobs": [{}', "body"),
    "a comma too many": (b'{"jobs": [{},]}', "body"),
    "more behind it": (b'{"jobs": [{}]} {}', "body"),
    "no UTF-8": (b'{"jobs": ["\xff"]}', "body"),
    "too deep": (b'{"jobs": [' + b"[" * 50_000 + b"]" * 50_000 + b"]}", "body"),
    "no jobs": (b"{}", "jobs"),
    "none at all": (b'{"jobs": []}', "jobs"),
    "no list": (b'{"jobs": {}}', "jobs"),
    "jobs twice": (b'{"jobs": [{}], "jobs": [{}]}', "jobs"),
    "another field": (b'{"tasks": [{}]}', "tasks"),
    "one field more": (b'{"jobs": [{}], "note": 1}', "note"),
}


@pytest.mark.parametrize(("body", "field"), BROKEN.values(), ids=BROKEN)
def test_a_body_that_is_no_batch_is_refused_as_a_whole(
    body: bytes, field: str, small: Site
) -> None:
    answer = small.ask("POST", "/pdf/batches", content=body)
    assert answer.status_code == 422
    said = answer.json()
    assert said["error_code"] == "VALIDATION_ERROR"
    assert [each["field"] for each in said["details"]["fields"]] == [field]
    assert small.count() == 0


def test_the_jobs_of_a_batch_are_the_very_bytes_that_were_sent() -> None:
    items = [b'{"a": "]}, \\" \xc3\xa9"}', b"[1 , 2]", b"3", b'"x"']
    body = b'\n{ "\\u006aobs" :\t[ ' + b" , ".join(items) + b" ] } "
    assert split_batch(body, most=4) == items
    with pytest.raises(Refusal, match="more than 3"):
        split_batch(body, most=3)


@pytest.mark.shows("P-52")
def test_a_batch_has_so_many_jobs_and_no_more(open_small: Callable[..., Site]) -> None:
    site = open_small(batch_limit=3)
    assert statuses(send(site, *map(letter, "abc"))) == [202] * 3
    over = send(site, *map(letter, "abcd"))
    assert over.status_code == 422
    assert over.json()["details"]["fields"][0]["field"] == "jobs"
    assert site.count() == 3


@pytest.mark.shows("P-52", "P-34")
def test_the_limits_of_bytes_are_exact(open_small: Callable[..., Site]) -> None:
    site = open_small(max_payload_bytes=200, max_batch_bytes=1000)

    def sized(size: int) -> bytes:
        return json.dumps(letter("x" * (size - len(json.dumps(letter("")))))).encode()

    largest, larger = sized(200), sized(201)
    assert (len(largest), len(larger)) == (200, 201)
    body = b'{"jobs":[' + largest + b"," + larger + b"]"
    body += b" " * (1000 - len(body) - 1) + b"}"
    assert len(body) == 1000
    first, second = results(site.ask("POST", "/pdf/batches", content=body))
    assert first["status"] == 202
    assert (second["status"], second["error_code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert second["details"] == {"max_bytes": 200}
    over = site.ask("POST", "/pdf/batches", content=body[:-1] + b" }")
    assert over.status_code == 413
    assert over.json()["details"] == {"max_bytes": 1000}


@pytest.mark.shows("P-52", "P-34")
def test_neither_results_nor_logs_tell_variables(
    small: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    answer = send(
        small, letter(SECRET), letter(SECRET, foo=1), letter(SECRET, template_name="x"),
        letter({"deep": [SECRET, 2**70]}),
    )  # fmt: skip
    assert statuses(answer) == [202, 422, 400, 422]
    assert SECRET not in answer.text
    logged = [str(vars(record)) for record in caplog.records if record.name.startswith("ulak")]
    assert not [line for line in logged if SECRET in line]


def test_a_batch_takes_the_right_to_render(small: Site) -> None:
    assert send(small, letter(), who=None).status_code == 401
    assert send(small, letter(), who="key:reads").status_code == 403
    assert small.count() == 0


# --- when new jobs are not taken ------------------------------------------------


@pytest.mark.shows("P-52", "P-40")
def test_backpressure_refuses_the_new_ones_of_a_batch_alone(site: Site) -> None:
    known = site.new("known")
    site.jobs.set_backpressure(True, 9)
    new, there = results(send(site, letter("new"), letter("known")))
    assert (new["status"], new["error_code"]) == (429, "BACKPRESSURE_ACTIVE")
    assert new["retry_after_seconds"] == 9
    assert (there["status"], there["job_id"]) == (202, known)
    assert site.count() == 1


@pytest.mark.shows("P-52", "P-37")
def test_while_nobody_works_the_new_ones_of_a_batch_are_unavailable(site: Site) -> None:
    known = site.new("known")
    site.clock.advance(site.config.heartbeat_limit + timedelta(seconds=1))
    site.later()
    answer = send(site, letter("new"), letter("known"), letter("newer"))
    new, there, newer = results(answer)
    assert (there["status"], there["job_id"]) == (202, known)
    for each in (new, newer):
        assert (each["status"], each["error_code"]) == (503, "PDF_RENDER_UNAVAILABLE")
        assert each["retry_after_seconds"] >= 1
    assert site.count() == 1
    assert site.value("ptf_admin_pdf_unavailable_total") == 2


@pytest.mark.shows("P-52", "P-39")
def test_a_store_that_does_not_answer_refuses_the_batch_and_keeps_nothing(site: Site) -> None:
    site.engine.open()
    with site.outage():
        site.later()
        answer = send(site, letter("a"), letter("b"))
    assert answer.status_code == 503
    assert answer.json()["error_code"] == "PDF_RENDER_UNAVAILABLE"
    assert int(answer.headers["Retry-After"]) >= 1
    site.heartbeat()
    assert site.count() == 0
    assert statuses(send(site, letter("a"), letter("b"))) == [202, 202]


@pytest.mark.shows("P-52", "P-36")
def test_html_never_stands_in_for_one_of_many(open_small: Callable[..., Site]) -> None:
    site = open_small(fail_safe_policy="degrade")
    degrade, strict = letter("a", options={"fail_safe": "degrade"}), letter("b")
    refused, accepted = results(send(site, degrade, strict))
    assert (refused["status"], refused["error_code"]) == (422, "VALIDATION_ERROR")
    assert refused["details"]["fields"][0]["field"] == "options.fail_safe"
    assert accepted["status"] == 202
    site.clock.advance(site.config.heartbeat_limit + timedelta(seconds=1))
    site.later()
    assert site.create("c").status_code == 200, "alone it would be the HTML"
    assert statuses(send(site, letter("c"))) == [503]


# --- the same again -------------------------------------------------------------


@pytest.mark.shows("P-52", "P-17")
def test_the_same_twice_in_a_batch_is_one_job(site: Site) -> None:
    twin = letter("same", options={"timeout": 30, "priority": 3})
    first, other, second = results(send(site, letter("same"), letter("other"), twin))
    assert first["job_id"] == second["job_id"] != other["job_id"]
    assert [each["deduplicated"] for each in (first, other, second)] == [False, False, True]
    assert site.count() == 2


@pytest.mark.shows("P-52", "P-17", "P-21")
def test_a_repeated_batch_answers_the_same_jobs_and_adds_an_owner(site: Site) -> None:
    jobs = [letter(name) for name in "abc"]
    first = results(send(site, *jobs[:2], who="key:acme"))
    again = results(send(site, *jobs, who="key:acme-2"))
    assert [each["job_id"] for each in again[:2]] == [each["job_id"] for each in first]
    assert [each["deduplicated"] for each in again] == [True, True, False]
    for each in again:
        assert site.get(f"/pdf/jobs/{each['job_id']}", who="key:acme-2").status_code == 200
    assert site.get(f"/pdf/jobs/{again[2]['job_id']}", who="key:acme").status_code == 404
    assert site.count() == 3


@pytest.mark.shows("P-52")
def test_an_idempotency_key_repeats_the_answer_to_the_byte(site: Site) -> None:
    key = {"Idempotency-Key": "batch-1"}
    jobs = [letter("a"), letter("b", colour="red")]
    first = send(site, *jobs, headers=key)
    assert statuses(first) == [202, 422]
    site.finish(first.json()["results"][0]["job_id"])
    again = send(site, *jobs, headers=key)
    assert (again.status_code, again.content) == (207, first.content)
    assert again.headers["Idempotent-Replayed"] == "true"
    other = send(site, letter("c"), headers=key)
    assert other.status_code == 422
    assert other.json()["error_code"] == "IDEMPOTENCY_KEY_REUSED"
    assert site.count() == 1


# --- commits --------------------------------------------------------------------


COMMITTED = ("add.after", "transaction.after", "commit.after")


@pytest.mark.shows("P-52")
def test_a_batch_is_one_commit_however_many_jobs_it_has(site: Site) -> None:
    send(site, letter("the first makes tables and the like"))
    plain = [letter(n) for n in range(100)]
    with faults.traced() as passed:
        assert statuses(send(site, *plain)) == [202] * 100
    assert [point for point in passed if point in COMMITTED] == ["add.after"]
    told = [letter(-n, options={"callback_url": CALLBACK}) for n in range(1, 51)]
    with faults.traced() as passed:
        assert statuses(send(site, *told)) == [202] * 50
    assert [point for point in passed if point in COMMITTED] == ["transaction.after"]
    assert site.count() == 151


@pytest.mark.shows("P-52", "P-50")
def test_each_job_of_a_batch_has_its_own_callback(site: Site) -> None:
    asked = [letter(n, options={"callback_url": f"{CALLBACK}/{n}"}) for n in range(3)]
    made = results(send(site, *asked, letter("quiet")))
    for each in made:
        site.fail(each["job_id"])
    waiting = site.engine.jobs(JobFilter(flow=submission.WANTED))
    wanted = [site.engine.inspect.payload(job.id, reveal=True) for job in waiting]
    assert {(each["job_id"], each["url"]) for each in wanted} == {
        (made[n]["job_id"], f"{CALLBACK}/{n}") for n in range(3)
    }


def new_jobs(desk: Desk) -> list[NewPdfJob]:
    """Six jobs of two priorities, two of them with somebody to tell if there is a quota."""
    url = CALLBACK if desk.config.tenant_queue else ""
    return [
        desk.jobs.new_job(
            INVOICE, payload(n=n), tenant="acme", priority=1 + n % 2,
            callback_url=url if n < 2 else "",
        )
        for n in range(6)
    ]  # fmt: skip


def told_desk(url: str, folder: Path, quota: int) -> Desk:
    desk = Desk(url, folder, config=config_of(tenant_queue=quota))
    callbacks.attach(desk.engine, desk.config)
    return desk


def create_them(url: str, folder: str, quota: str) -> None:
    """In a process of its own, which dies on the way."""
    desk = told_desk(url, Path(folder), int(quota))
    desk.jobs.create_jobs(new_jobs(desk), tenant="acme", actor="ada")


@pytest.mark.shows("P-52", "P-39")
@pytest.mark.parametrize(
    ("point", "nth", "quota", "left"),
    [
        ("add.inside", 1, 0, 0),
        ("add.after", 1, 0, 3),
        ("add.inside", 2, 0, 3),
        ("transaction.inside", 1, 100, 0),
        ("transaction.after", 1, 100, 6),
    ],
)
def test_after_a_crash_half_way_the_same_batch_makes_the_rest(
    pdf_url: str, tmp_path: Path, point: str, nth: int, quota: int, left: int
) -> None:
    desk = told_desk(pdf_url, tmp_path / "artifacts", quota)
    desk.jobs.backpressure()  # so that the tables are there before somebody dies
    ended = faults.run(
        create_them, pdf_url, str(tmp_path / "artifacts"), quota, kill_at=point, nth=nth
    )
    assert ended.killed, ended.errors
    where = JobFilter(flow="pdf")
    before = {job.id for job in desk.engine.jobs(where)}
    assert len(before) == left
    assert desk.engine.inspect.verify() == []
    made = desk.jobs.create_jobs(new_jobs(desk), tenant="acme", actor="ada")
    assert all(isinstance(each, Created) for each in made)
    after = {job.id for job in desk.engine.jobs(where)}
    assert after == {each.job.job_id for each in made if isinstance(each, Created)}
    assert before <= after
    assert len(after) == 6
    assert desk.engine.inspect.verify() == []
    desk.close()


def test_a_batch_over_a_real_socket_is_taken_while_it_is_sent_in_parts(small: Site) -> None:
    headers = {"Authorization": f"Bearer {credential_of('key:shop')}"}
    body = json.dumps({"jobs": [letter("a"), letter("b")]}).encode()
    with small.served() as address, httpx.Client(base_url=address, headers=headers) as client:
        answer = client.post("/pdf/batches", content=iter([body[:20], body[20:]]))
    assert [each["status"] for each in answer.json()["results"]] == [202, 202]
