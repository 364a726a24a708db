"""The tasks of the saga: what each calls, how often it is tried, and when it fails for good."""

import inspect as python
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.services.publishing.played import (
    KEYS,
    POST_ID,
    PUBLICATION_ID,
    Answer,
    Asked,
    Played,
    done,
    payload,
    playing,
    post,
    refused,
)
from ulak import BadInput, Job, RetryLater
from ulak.services.publishing import statuses, tasks
from ulak.services.publishing.dead_letters import DeadLetters, compensate
from ulak.services.publishing.events import TaskRefused, read_payload, step
from ulak.services.publishing.handling import make_backoff
from ulak.services.publishing.queue import Queue
from ulak.services.publishing.settings import PublishingSettings
from ulak.services.publishing.tasks import (
    Tasks,
    generate_preview,
    make_policy,
    make_tasks,
    moderate_post,
    notify,
    publish_post,
)
from ulak.testing import Harness

HANDLERS = {
    statuses.MODERATE: moderate_post,
    statuses.GENERATE_PREVIEW: generate_preview,
    statuses.PUBLISH: publish_post,
    statuses.NOTIFY: notify,
}


class Told:
    """Notifications that only remember what they were told."""

    def __init__(self) -> None:
        self.posts: list[str] = []
        self.waits: list[RetryLater | None] = []

    async def run(self, article: Any, *, round: int, attempt: int, stop: Any) -> Any:
        self.posts.append(article["id"])
        return self.waits.pop(0) if self.waits else None


class Works:
    """A worker of every queue, whose clock the test turns, and the backend that it calls."""

    def __init__(self, played: Played, **settings: Any) -> None:
        self.played = played
        about = {"backend_url": played.url, "internal_api_keys": KEYS, "approve_rate": 1.0}
        self.settings = PublishingSettings(**about | settings)
        self.harness = Harness()
        self.tasks = make_tasks(self.settings)
        self.queue = Queue(self.harness.engine, self.harness.engine, self.tasks)
        self.dead_letters: Any = DeadLetters(self.queue, None)  # type: ignore[arg-type]
        self.told: Any = Told()
        tasks.declare(
            self.queue, self.settings, dead_letters=self.dead_letters, notifications=self.told
        )

    def submit(self, task: str = statuses.MODERATE, **changes: Any) -> Job:
        return self.harness.submit(self.tasks.find(task), payload(task, **changes))

    def run(self, task: str = statuses.MODERATE, **changes: Any) -> Job:
        job = self.submit(task, **changes)
        self.harness.run_until_idle()
        return self.harness.job(job.id)

    def letter(self, job: Job) -> dict[str, Any]:
        found: dict[str, Any] = self.dead_letters.get(job.id)
        return found

    def passed(self, job: Job) -> list[str]:
        """What a task noted that had nothing left to do."""
        trail = self.harness.trail(job.id)
        return [str(line.message) for line in trail if line.kind == "publishing.passed"]

    def tries(self, job: Job) -> list[float]:
        """When the runs of a task ended, in seconds from its submit."""
        begun, *rest = self.harness.trail(job.id)
        ends = [line for line in rest if line.kind in ("retry", "failed", "moved")]
        return [(line.at - begun.at).total_seconds() for line in ends]


def says(*, article: dict[str, Any] | None = None, **steps: Answer) -> Callable[[Asked], Answer]:
    """Answer a read with a post, and each step as it is said, by default with success."""
    usual = done(changed=True, status="PENDING_PUBLISH", article_id=POST_ID)

    def answer(asked: Asked) -> Answer:
        if asked.step == "read" and "read" not in steps:
            return done(article=post(**article or {}))
        return steps.get(asked.step, usual)

    return answer


@pytest.fixture
def played() -> Iterator[Played]:
    with playing(says()) as server:
        yield server


@pytest.fixture
def works(played: Played) -> Iterator[Works]:
    made = Works(played)
    yield made
    made.harness.close()


# --- retries ------------------------------------------------------------------------


@pytest.mark.shows("S-17")
def test_the_retry_options_stand_beside_each_handler_and_the_settings_win_over_them() -> None:
    for handler in HANDLERS.values():
        assert python.iscoroutinefunction(handler)
        declared = vars(handler)
        assert declared["max_retries"] == 3
        assert declared["retry_backoff"] is declared["retry_jitter"] is True
    settings = PublishingSettings(
        saga_max_retries=5, notify_max_retries=0, retry_jitter=False,
        retry_base=timedelta(seconds=2), retry_max=timedelta(seconds=9),
    )  # fmt: skip
    saga, notifying = (make_backoff(h, settings) for h in (publish_post, notify))
    assert (saga.limit(), notifying.limit()) == (5, 0)
    delays = [saga.delay_us(failures, b"any") for failures in range(1, 7)]
    assert delays == [2_000_000, 4_000_000, 8_000_000, 9_000_000, 9_000_000, None]
    assert make_backoff(compensate, settings).limit() == 10


@pytest.mark.shows("S-17")
@pytest.mark.parametrize("task", HANDLERS)
def test_a_task_is_tried_four_times_after_one_two_and_four_seconds(task: str) -> None:
    with playing(lambda asked: refused(500, "broken")) as played:
        works = Works(played, retry_jitter=False)
        job = works.submit(task)
        works.harness.advance(seconds=8)
        assert works.tries(job) == [0.0, 1.0, 3.0, 7.0]
        letter = works.letter(job)
        works.harness.close()
    assert (letter["attempts"], letter["code"]) == (4, "broken")
    assert letter["error_class"] == "BackendAway"
    assert "500 broken" in letter["error"]


@pytest.mark.shows("S-17")
def test_delays_are_drawn_from_nothing_to_their_whole_length() -> None:
    backoff = make_backoff(publish_post, PublishingSettings())
    for failures, most in ((1, 1.0), (2, 2.0), (3, 4.0)):
        ids = (f"job-{number}".encode() for number in range(400))
        drawn = sorted((backoff.delay_us(failures, each) or 0) / 1e6 for each in ids)
        assert 0 <= drawn[0] < most / 20
        assert most * 0.95 < drawn[-1] <= most
        assert abs(sum(drawn) / len(drawn) - most / 2) < most / 10
    assert (backoff.retries, backoff.longest) == (3, timedelta(seconds=600))


@pytest.mark.shows("S-17")
@pytest.mark.parametrize(("seconds", "second_try"), [(0, 1.0), (40, 40.0)])
def test_retry_after_counts_where_it_is_longer_than_the_delay(
    played: Played, seconds: int, second_try: float
) -> None:
    answers = [refused(503, "away", Retry_After=str(seconds))]
    played.says = lambda asked: answers.pop() if answers else says()(asked)
    works = Works(played, retry_jitter=False)
    job = works.submit()
    works.harness.advance(minutes=1)
    assert works.tries(job) == [0.0, second_try]
    assert works.harness.job(job.id).state == "done"
    works.harness.close()


@pytest.mark.shows("S-17")
def test_a_task_that_is_told_to_wait_each_time_gives_up_after_its_retries(played: Played) -> None:
    played.says = lambda asked: refused(429, "overloaded", Retry_After="30")
    works = Works(played, retry_jitter=False)
    job = works.submit()
    works.harness.advance(minutes=2)
    assert works.tries(job) == [0.0, 30.0, 60.0, 90.0]
    letter = works.letter(job)
    assert (letter["error_class"], letter["code"]) == ("BackendAway", "overloaded")
    assert "BackendAway" in letter["traceback"]
    works.harness.close()


@pytest.mark.shows("S-18", "R-15")
@pytest.mark.parametrize(
    "refusal", [refused(401, "invalid_api_key"), refused(409, "idempotency_in_progress")]
)
def test_a_refused_key_spends_no_retry_for_a_quarter_of_an_hour(
    works: Works, refusal: Answer
) -> None:
    works.played.says = lambda asked: refusal
    job = works.submit()
    works.harness.advance(minutes=14, seconds=30)
    waiting = works.harness.job(job.id)
    assert (waiting.role, waiting.attempt) == ("ready", 0)
    tries = works.tries(job)
    waits = [after - before for before, after in pairwise(tries)]
    assert len(waits) > 25
    assert all(5 <= wait <= 30 for wait in waits)
    assert len({round(wait, 3) for wait in waits}) > len(waits) / 2, "a crowd returns at once"
    works.played.says = says()
    works.harness.advance(seconds=31)
    assert works.harness.job(job.id).state == "done"


@pytest.mark.shows("S-18")
def test_after_a_quarter_of_an_hour_a_refused_key_spends_retries_and_a_redrive_waits_again(
    works: Works,
) -> None:
    works.played.says = lambda asked: refused(401, "invalid_api_key")
    job = works.submit()
    works.harness.advance(minutes=16)
    tries = works.tries(job)
    assert works.harness.job(job.id).role == "failed"
    assert len([at for at in tries if at >= 15 * 60]) == 4
    assert works.letter(job)["error_class"] == "KeyRefused"
    works.queue.put_back(job.id, 1, "ada")
    works.harness.advance(minutes=5)
    again = works.harness.job(job.id)
    assert (again.role, again.round, again.attempt) == ("ready", 2, 0)


@pytest.mark.shows("S-18")
@pytest.mark.parametrize(
    ("task", "answers"),
    [
        (statuses.PUBLISH, says(publish=refused(409, "preview_missing"))),
        (statuses.GENERATE_PREVIEW, says(preview=refused(422, "validation_error"))),
        (statuses.MODERATE, says(approve=refused(400, "bad_request"))),
    ],
)
def test_what_no_retry_can_mend_is_a_dead_letter_at_once(
    works: Works, task: str, answers: Callable[[Asked], Answer]
) -> None:
    works.played.says = answers
    job = works.run(task)
    assert job.role == "failed"
    assert works.letter(job)["attempts"] == 1


@pytest.mark.shows("S-18")
@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2}, {"post_id": "../../../users"}, {"publication_id": None}, {"revision": "1"},
        {"event_id": "not-an-id"},
    ],
)  # fmt: skip
def test_a_broken_payload_is_a_dead_letter_at_once_and_nobody_is_called(
    works: Works, changes: dict[str, Any]
) -> None:
    job = works.run(**changes)
    assert job.role == "failed"
    letter = works.letter(job)
    assert (letter["error_class"], letter["code"]) == ("TaskRefused", "broken_payload")
    assert letter["attempts"] == 1
    assert letter["state"] == "logged"
    assert works.played.asked == []


@pytest.mark.shows("S-18")
def test_a_payload_that_is_no_object_is_a_dead_letter_too(works: Works) -> None:
    flow = works.tasks.flows[statuses.MODERATE]
    job = works.harness.run(flow, ["a list"], dedup_key="a list")
    assert job.role == "failed"
    assert works.letter(job)["state"] == "logged"
    with pytest.raises(TaskRefused, match="lacks event_id, "):
        read_payload({"schema": 1})


@pytest.mark.shows("S-18", "S-20")
@pytest.mark.parametrize("task", HANDLERS)
def test_what_is_past_or_gone_is_acknowledged_without_a_dead_letter(
    works: Works, task: str
) -> None:
    others = {
        "not_found": says(read=refused(404, "not_found")),
        "stale": says(article={"publication_id": POST_ID}),
        "past": says(article={"status": "REJECTED"}),
    }
    for number, answers in enumerate(others.values()):
        works.played.says = answers
        job = works.run(task, event_id=f"{POST_ID[:-1]}{number}")
        assert job.state == "done"
        assert len(works.passed(job)) == 1
    assert set(works.played.steps) == {"read"}
    assert works.told.posts == []
    assert works.harness.unfinished() == []


@pytest.mark.shows("S-18", "R-14")
@pytest.mark.parametrize(
    ("task", "step", "code"),
    [
        (statuses.MODERATE, "approve", "already_rejected"),
        (statuses.MODERATE, "approve", "stale_publication"),
        (statuses.GENERATE_PREVIEW, "preview", "invalid_status"),
        (statuses.PUBLISH, "publish", "invalid_status"),
    ],
)
def test_a_step_that_comes_too_late_is_acknowledged(
    works: Works, task: str, step: str, code: str
) -> None:
    works.played.says = says(**{step: refused(409, code)})
    job = works.run(task)
    assert job.state == "done"
    assert code in works.passed(job)[0]


def test_saga_stages_end_within_half_a_minute() -> None:
    made = make_tasks(PublishingSettings())
    stages = {flow.name: flow.declared.stages[0] for flow in (*made.saga, made.dlq)}
    timeouts = {name: stage.timeout for name, stage in stages.items()}
    assert timeouts.pop(statuses.NOTIFY) == timedelta(minutes=15)
    assert set(timeouts.values()) == {timedelta(seconds=30)}


# --- steps --------------------------------------------------------------------------


@pytest.mark.shows("S-15")
def test_the_default_policy_approves_seven_of_ten_and_as_the_rate_says() -> None:
    def approved(**settings: Any) -> float:
        policy = make_policy(PublishingSettings(**settings))
        drawn = [policy(post(publication_id=str(number))) for number in range(2000)]
        return sum(drawn) / len(drawn)

    assert abs(approved() - 0.7) < 0.04
    assert (approved(approve_rate=0.0), approved(approve_rate=1.0)) == (0.0, 1.0)
    assert abs(approved(approve_rate=0.2) - 0.2) < 0.04


@pytest.mark.shows("S-15")
def test_a_seed_gives_the_same_verdicts_in_every_run() -> None:
    def verdicts(seed: str | None, run: int) -> list[bool]:
        policy = make_policy(PublishingSettings(moderation_seed=seed, approve_rate=0.5))
        posts = (post(slug=f"post-{n}", publication_id=f"{run}-{n}") for n in range(64))
        return [policy(each) for each in posts]

    assert verdicts("a", 1) == verdicts("a", 2)
    assert verdicts("a", 1) != verdicts("b", 1)
    assert verdicts(None, 1) != verdicts(None, 2)


@pytest.mark.shows("S-15")
def test_a_policy_of_the_programs_own_judges_the_post(played: Played) -> None:
    judged: list[str] = []

    def policy(article: Any) -> bool:
        judged.append(article["title"])
        return False

    works = Works(played)
    harness = Harness()
    queue = Queue(harness.engine, harness.engine, works.tasks)
    tasks.declare(
        queue, works.settings, dead_letters=works.dead_letters, notifications=works.told,
        policy=policy,
    )  # fmt: skip
    assert harness.run(works.tasks.flows[statuses.MODERATE], payload()).state == "done"
    assert judged == ["A post"]
    assert played.steps == ["read", "reject"]
    assert played.asked[1].body["reason"]
    harness.close()


@pytest.mark.shows("S-16")
@pytest.mark.parametrize(("verdict", "step"), [("approve", "approve"), ("reject", "reject")])
def test_a_stored_verdict_is_said_again_and_never_drawn_again(
    played: Played, verdict: str, step: str
) -> None:
    played.says = says(article={"verdict": verdict})
    works = Works(played, approve_rate=0.0 if verdict == "approve" else 1.0)
    assert works.run().state == "done"
    assert played.steps == ["read", step]
    works.harness.close()


@pytest.mark.shows("S-16")
def test_whoever_delivers_it_again_draws_the_same_verdict(played: Played) -> None:
    for number in range(8):
        publication = f"{PUBLICATION_ID[:-1]}{number}"
        played.says = says(article={"publication_id": publication})
        played.asked.clear()
        for _ in range(2):
            works = Works(played, approve_rate=0.5)
            assert works.run(publication_id=publication).state == "done"
            works.harness.close()
        assert played.steps[1] == played.steps[3]


def test_a_preview_that_is_stored_is_stored_again_so_that_publish_follows(works: Works) -> None:
    works.run(statuses.GENERATE_PREVIEW)
    works.played.says = says(article={"preview_url": "https://cdn.example.com/1.png"})
    works.run(statuses.GENERATE_PREVIEW, event_id=POST_ID)
    sent = [asked.body["preview_url"] for asked in works.played.asked if asked.step == "preview"]
    assert sent == [
        f"https://preview.example.com/articles/{POST_ID}/preview.png",
        "https://cdn.example.com/1.png",
    ]


def test_subscribers_are_told_of_a_published_post_until_every_delivery_is_final(
    works: Works,
) -> None:
    works.played.says = says(article={"status": "PUBLISHED"})
    works.told.waits = [RetryLater(20), None]
    job = works.submit(statuses.NOTIFY)
    works.harness.advance(seconds=21)
    assert works.harness.job(job.id).state == "done"
    assert works.told.posts == [POST_ID, POST_ID]


@pytest.mark.shows("S-20")
def test_an_event_that_is_put_twice_is_one_task(works: Works) -> None:
    first, second = works.submit(), works.submit()
    works.harness.run_until_idle()
    assert (first.id, second.created) == (second.id, False)
    assert works.played.steps == ["read", "approve"]
    works.harness.advance(days=6)
    assert works.submit().id == first.id, "the inbox remembers for seven days"


@pytest.mark.shows("S-25")
def test_a_task_of_which_the_sweep_gave_up_is_a_dead_letter_until_an_operator_runs_it(
    works: Works,
) -> None:
    job = works.run(stuck=True)
    letter = works.letter(job)
    assert (letter["code"], letter["attempts"]) == ("stuck", 1)
    assert "approve" not in works.played.steps
    works.queue.put_back(job.id, 1, "ada")
    works.harness.run_until_idle()
    assert works.harness.job(job.id).state == "done"
    assert works.played.steps[-1] == "approve"


@pytest.mark.shows("S-19")
def test_an_unknown_task_is_kept_and_goes_on_after_an_upgrade(works: Works) -> None:
    flow, about = works.queue._address("post.translate", payload("post.translate"))
    job = works.harness.run(flow, about)
    letter = works.letter(job)
    assert (letter["task"], letter["code"]) == ("post.translate", "unknown_task")
    assert (letter["attempts"], letter["state"]) == (1, "logged")
    assert works.played.asked == []
    # The release after this one has the task.
    works.tasks.flows["post.translate"] = works.tasks.flows[statuses.PUBLISH]  # type: ignore[index]
    works.queue.put_back(job.id, 1, "ada")
    works.harness.run_until_idle()
    assert works.harness.job(job.id).state == "done"
    assert works.played.steps == ["read", "publish"]


@pytest.mark.shows("S-19")
def test_each_worker_takes_only_the_queues_whose_tasks_it_knows() -> None:
    settings = PublishingSettings(
        saga_queue="steps", notifications_queue="pushes", dlq_queue="letters"
    )
    made: Tasks = make_tasks(settings)
    queues = {flow.name: flow.queue for flow in (*made.saga, made.dlq)}
    assert queues == {
        "post.moderate": "steps", "post.generate_preview": "steps", "post.publish": "steps",
        "post.notify": "pushes", "post.unknown": "steps", "dlq": "letters",
    }  # fmt: skip


def test_a_step_that_raises_passes_no_point_after_it() -> None:
    from ulak.testing import faults

    with faults.traced() as passed:
        with step("notify.push"):
            pass
        with pytest.raises(BadInput), step("notify.mark"):
            raise BadInput("no")
    assert passed == [
        "publishing.notify.push.before", "publishing.notify.push.after",
        "publishing.notify.mark.before",
    ]  # fmt: skip
