"""`ulak jobs`: what an operator reads, and what an operator does."""

import importlib
import json
import re
from datetime import timedelta

import pytest

from ulak.ids import from_text
from ulak.store.protocol import ClaimRequest, Want

NARROW = """
import ulak

engine = ulak.connect("sqlite:///narrow.db")

@engine.job(limit=ulak.Limit(1))
def only() -> None: ...

@engine.job
def other() -> None: ...
"""

NOBODY = "0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33"


def claim(shop, amount: int = 10) -> str:
    return shop.submit(
        "claim", {"who": "ada", "amount": amount, "iban": "TR33-SECRET"}, actor="ada", tenant="t1"
    )


def test_a_list_can_be_filtered_by_everything_it_shows(shop):
    shop.submit("greet", "ada")
    shop.submit("stumble", 1)
    claim(shop)
    shop.work()
    for options, flows in [
        ((), ["claim", "stumble", "greet"]),
        (("--flow", "greet"), ["greet"]),
        (("--state", "done"), ["greet"]),
        (("--role", "held"), ["claim"]),
        (("--tenant", "t1"), ["claim"]),
        (("--code", "raised"), ["stumble"]),
        (("--code", "nothing-like-it"), []),
    ]:
        answer = shop.ulak("jobs", "list", "--json", *options)
        assert [job["flow"] for job in answer.document["jobs"]] == flows, options


@pytest.mark.shows("E-75")
def test_a_list_can_be_filtered_by_time_id_and_dedup_key(shop):
    first = shop.submit("greet", "ada", dedup_key="order 7", actor="ada")
    second = shop.submit("stumble", 1)
    _, old = shop.ulak("jobs", "list", "--json").document["jobs"]
    for options, jobs in [
        (("--dedup-key", "order 7"), [first]),
        (("--id-prefix", second[:-1], "--queue", "stumble"), [second]),
        (("--submitted-since", old["created_at"]), [second, first]),
        (("--submitted-before", old["created_at"]), []),
        (("--changed-since", "2020-01-31", "--changed-before", "9999-01-31T12:00:00Z"), [
            second, first,
        ]),
        (("--changed-before", "2020-01-31T12:00:00+01:00"), []),
        (("--owner", "ada"), []),
    ]:  # fmt: skip
        answer = shop.ulak("jobs", "list", "--json", *options)
        assert [job["id"] for job in answer.document["jobs"]] == jobs, options
    for options, sentence in (
        (("--submitted-since", "yesterday"), "'yesterday' is not a time; write"),
        (("--id-prefix", "xyz"), "no job id begins with 'xyz'"),
    ):
        refused = shop.ulak("jobs", "list", *options)
        assert refused.code != 0
        assert sentence in refused.err


@pytest.mark.shows("E-75")
def test_a_list_says_when_no_index_serves_it(shop):
    sentence = "no index serves state=: "
    assert sentence in shop.ulak("jobs", "list", "--state", "done").err
    assert "no index" not in shop.ulak("jobs", "list", "--role", "held").err
    document = shop.ulak("jobs", "list", "--json", "--state", "done").document
    assert document["unserved"].startswith(sentence)


@pytest.mark.shows("E-74")
def test_jobs_are_counted_by_how_they_stand(shop):
    assert "no jobs" in shop.ulak("jobs", "counts").err
    for n in range(3):
        shop.submit("greet", str(n))
    shop.submit("greet", "later", after=timedelta(hours=1))
    claim(shop)
    claimed, greet = shop.ulak("jobs", "counts", "--json").document["backlog"]
    assert (claimed["flow"], claimed["held"], claimed["due"]) == ("claim", 1, 0)
    assert (greet["flow"], greet["queue"], greet["due"]) == ("greet", "greet", 3)
    assert (greet["delayed"], greet["at_least"]) == (1, [])
    assert greet["oldest_due"].endswith("Z")
    said = shop.ulak("jobs", "counts").out
    assert re.search(r"greet +greet +3 +1 +0 +0 +0 ", said)
    assert max(map(len, said.splitlines())) <= 100


def test_pages_follow_each_other_without_a_gap(shop):
    jobs = [shop.submit("greet", str(n)) for n in range(5)]
    seen, after = [], []
    while True:
        page = shop.ulak("jobs", "list", "--json", "--limit", "2", *after).document
        seen += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        after = ["--after", page["next"]]
    assert seen == jobs[::-1]


def test_a_list_for_people_fits_a_hundred_columns_and_keeps_ids_whole(shop):
    job = claim(shop)
    shop.submit("stumble", 1)
    shop.work()
    said = shop.ulak("jobs", "list").out
    assert max(map(len, said.splitlines())) <= 100
    assert job in said
    assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", said)


@pytest.mark.shows("E-2")
def test_a_list_tells_the_leased_the_parked_the_delayed_and_the_due_apart(shop, tmp_path):
    (tmp_path / "narrow.py").write_text(NARROW)
    narrow = importlib.import_module("narrow")
    with narrow.engine as engine:
        running, parked = (engine.submit(narrow.only).id for _ in range(2))
        lane = engine.store.find_job(from_text(running)).lane
        engine.store.register("w", lease_us=60_000_000, lanes=[lane], about="")
        assert len(engine.store.claim(ClaimRequest("w", (Want((lane,), 2),))).claims) == 1
        delayed = engine.submit(narrow.only, after=timedelta(hours=1)).id
        due = engine.submit(narrow.other).id
    said = shop.run("jobs", "list", "-a", "narrow:engine").out
    standing = {line.split()[0]: line.split()[-2:] for line in said.splitlines()[1:]}
    assert standing == {
        running: ["ready,", "leased"], parked: ["ready,", "parked"],
        delayed: ["ready,", "delayed"], due: ["ready,", "due"],
    }  # fmt: skip


@pytest.mark.shows("E-15")
def test_a_job_is_shown_with_its_secrets_hidden(shop):
    job = claim(shop)
    said = shop.ulak("jobs", "show", job)
    document = shop.ulak("jobs", "show", job, "--json").document
    assert "TR33-SECRET" not in said.out + json.dumps(document)
    assert document["payload"] == {"who": "ada", "amount": 10, "iban": "***"}
    assert document["choices"] == ["approve", "refuse"]
    assert document["created_at"].endswith("Z")


def test_the_payload_of_a_flow_that_is_not_declared_stays_hidden(shop, tmp_path):
    job = claim(shop)
    (tmp_path / "other.py").write_text('import ulak\nengine = ulak.connect("sqlite:///shop.db")\n')
    for answer in (
        shop.run("jobs", "show", job, "-a", "other:engine"),
        shop.run("jobs", "show", job, "-a", "other:engine", "--json"),
    ):
        assert answer.code == 0
        assert "TR33-SECRET" not in answer.out


def test_a_result_is_shown(shop):
    job = shop.submit("greet", "ada")
    shop.work()
    assert shop.ulak("jobs", "show", job, "--json").document["result"] == "hello ada"
    assert "hello ada" in shop.ulak("jobs", "show", job).out


def test_what_a_stage_says_never_reaches_the_terminal_as_a_command(shop):
    job = shop.submit("stumble", 1)
    shop.work()
    said = shop.ulak("jobs", "trail", job).out
    assert "[bold]luck[/bold]" in said
    assert "\x1b" not in said
    assert "\\x1b" in said


@pytest.mark.shows("E-11")
def test_a_decision_moves_the_job_and_stands_in_the_trail(shop):
    job = claim(shop)
    answer = shop.ulak(
        "jobs", "decide", job, "approve", "--actor", "grace", "--note", "checked",
        "--data", '{"grade": 1}', "--role", "operator",
    )  # fmt: skip
    assert answer.code == 0
    assert "requested > approved" in answer.out
    events = shop.ulak("jobs", "trail", job, "--json").document["events"]
    assert [(e["kind"], e["actor"], e["code"], e["message"]) for e in events[1:]] == [
        ("decided", "grace", "approve", "checked")
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "about"),
    [
        (("perhaps", "--actor", "grace"), 1, '"approve" or "refuse"'),
        (("approve", "--actor", "ada"), 1, "ada may not decide"),
        (("approve", "--actor", "grace", "--role", "viewer"), 1, 'only "operator"'),
        (("approve", "--actor", "grace", "--data", "{"), 2, "not JSON"),
        (("approve", "--actor", "grace", "--data", '{"grade": "high"}'), 1, "Verdict"),
    ],
)
def test_a_decision_that_is_not_allowed_is_refused_and_changes_nothing(
    shop, arguments, code, about
):
    job = claim(shop)
    answer = shop.ulak("jobs", "decide", job, *arguments)
    assert answer.code == code
    assert about in answer.err
    assert shop.ulak("jobs", "show", job, "--json").document["state"] == "requested"


def test_release_retry_and_cancel(shop):
    held, failed, waiting = claim(shop, 5000), shop.submit("stumble", 1), claim(shop)
    shop.ulak("jobs", "decide", held, "approve", "--actor", "grace")
    shop.work()
    assert "held > approved" in shop.ulak("jobs", "release", held, "--note", "fine").out
    assert shop.ulak("jobs", "retry", failed, "--json").document["round"] == 2
    assert "requested > cancelled" in shop.ulak("jobs", "cancel", waiting).out
    again = shop.ulak("jobs", "cancel", waiting)
    assert again.code == 1
    assert "already ended" in again.err


@pytest.mark.parametrize(
    "command",
    [("show",), ("trail",), ("release",), ("retry",), ("cancel",), ("decide", "approve"), ()],
    ids=lambda command: " ".join(command) or "why",
)
@pytest.mark.parametrize(
    ("job", "about"), [(NOBODY, f"no job {NOBODY}"), ("7", "'7' is not a job id"), ("", "job id")]
)
def test_a_job_that_does_not_exist_is_one_line(shop, command, job, about):
    words = ["jobs", command[0], job, *command[1:]] if command else ["why", job]
    answer = shop.ulak(*words)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert about in answer.err


@pytest.mark.parametrize(
    "options",
    [("--limit", "0"), ("--limit", "x"), ("--role", "asleep"), ("--after", "7"), ("--colour",)],
)
def test_a_list_that_is_misused_says_so(shop, options):
    answer = shop.ulak("jobs", "list", *options)
    assert answer.code == (1 if options[0] == "--after" else 2)
    assert answer.err


@pytest.mark.shows("E-64")
def test_why_answers_in_a_sentence_and_as_json(shop):
    job = claim(shop)
    answer = shop.ulak("why", job)
    assert answer.code == 0
    document = shop.ulak("why", job, "--json").document
    assert document["code"] == "gate"
    assert document["sentence"] in " ".join(answer.out.split())
