"""Dead letters: what becomes of a post whose task has failed for good, and what operators do."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.services.publishing.plant import (
    BEFORE,
    LOST,
    Plant,
    live_worker,
    place,
)
from tests.services.publishing.played import payload
from tests.services.publishing.shared import Served
from tests.services.publishing.site import MOSTLY_SQLITE, at_once, eventually
from ulak import JobFilter
from ulak.services.publishing import dead_letters, statuses
from ulak.services.publishing.articles import Article
from ulak.services.publishing.dead_letters import DeadLetterNotFound, DeadLetterState
from ulak.services.publishing.statuses import ERROR, PENDING_PUBLISH, PUBLISHED, REJECTED
from ulak.testing import faults

ONCE: dict[str, Any] = {"saga_max_retries": 0, "retry_max": timedelta(milliseconds=20)}
"""Settings with which a task that fails is a dead letter at once."""


@pytest.fixture
def plant(served_beside: Served) -> Iterator[Plant]:
    with served_beside.plant(**ONCE | {"saga_max_retries": 1}) as made:
        yield made


@pytest.fixture
def each_way(served_both: Served) -> Iterator[Plant]:
    with served_both.plant(**ONCE) as made:
        yield made


def break_(plant: Plant, *steps: str, how: Any = BEFORE) -> None:
    plant.backend.rule = lambda step: how if step in steps else None


def mend(plant: Plant) -> None:
    plant.backend.rule = lambda step: None


def fail(plant: Plant, *steps: str) -> tuple[Article, dict[str, Any]]:
    """Publish a post whose saga fails at a step; return it and its dead letter."""
    break_(plant, *steps)
    post = plant.publish()
    with plant.running():
        plant.wait(post)
    mend(plant)
    (letter,) = plant.letters()
    return post, letter


# --- compensation -------------------------------------------------------------------


@pytest.mark.shows("S-21", "S-22")
@pytest.mark.parametrize(
    ("step", "task", "status"),
    [
        ("approve", statuses.MODERATE, REJECTED),
        ("preview", statuses.GENERATE_PREVIEW, ERROR),
        ("publish", statuses.PUBLISH, ERROR),
    ],
)
def test_a_task_that_failed_for_good_is_one_dead_letter_and_its_post_is_compensated(
    plant: Plant, step: str, task: str, status: str
) -> None:
    post, letter = fail(plant, step)
    found = plant.find(post)
    assert found.status == status
    assert plant.moves(post)[-1] == (status, statuses.DEAD_LETTER)
    why = found.moderation_reason if status == REJECTED else found.error_message
    assert why is not None
    assert f"{task} failed: BackendAway: " in why
    assert len(plant.jobs("dlq")) == 1
    assert (letter["task"], letter["post_id"]) == (task, post.id)
    assert letter["publication_id"] == post.publication_id
    assert letter["payload"]["event_id"] == letter["event_id"]
    assert (letter["attempts"], letter["error_class"]) == (2, "BackendAway")
    assert "BackendAway" in letter["traceback"]
    assert len(letter["traceback"]) <= 4096
    began, died = (datetime.fromisoformat(letter[name]) for name in ("first_failed_at", "died_at"))
    assert began < died
    assert letter["state"] == "compensated"
    assert letter["action"] == f"post {post.id} is {status}"


@pytest.mark.shows("S-22")
def test_a_failed_notification_is_only_logged_and_a_redrive_sends_it(plant: Plant) -> None:
    author, readers = plant.make_author(2)
    # Three tasks read the post before it is published; what reads it then cannot.
    plant.backend.rule = lambda step: BEFORE if plant.backend.calls["read"] > 3 else None
    post = plant.publish(author=author)
    with plant.running():
        assert plant.wait(post) == [PUBLISHED]
        (letter,) = plant.letters()
        assert (letter["task"], letter["state"]) == (statuses.NOTIFY, "logged")
        assert plant.receiver.keys == []
        mend(plant)
        # What is published may be edited, and that is no reason not to tell of it.
        plant.posts.edit(post.slug, author, body="more")
        assert plant.dead_letters.redrive(letter["id"], actor="ada")["state"] == "redriven"
        plant.settle()
    assert sorted(plant.receiver.keys) == sorted(f"{post.id}:{reader}" for reader in readers)
    assert plant.find(post).status == PUBLISHED


@pytest.mark.shows("S-19", "S-22")
def test_what_nobody_can_compensate_is_kept_and_somebody_is_told(
    plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    post = plant.publish()
    broken = payload(post_id="..")
    jobs = [
        plant.engine.submit(plant.tasks.unknown, payload() | {"task": "post.translate"}),
        plant.engine.submit(plant.tasks.flows[statuses.MODERATE], broken, dedup_key="broken"),
    ]
    with plant.running(), caplog.at_level(logging.ERROR, logger="ulak.publishing"):
        assert plant.wait(post) == [PUBLISHED]
    letters = {letter["id"]: letter for letter in plant.letters()}
    assert set(letters) == {job.id for job in jobs}
    assert {letter["state"] for letter in letters.values()} == {"logged"}
    ours = [line for line in caplog.records if line.name == "ulak.publishing"]
    told = {vars(line)["task"] for line in ours if line.levelno == logging.ERROR}
    assert told == {"post.translate", statuses.MODERATE}


@pytest.mark.shows("R-13", "S-22")
def test_compensation_that_is_delivered_twice_changes_a_post_once(plant: Plant) -> None:
    post, letter = fail(plant, "preview")
    told = {"dead_letter": letter["id"], "round": 1}
    again = [plant.engine.submit(plant.tasks.dlq, told, dedup_key=f"again{n}") for n in range(8)]
    with plant.running():
        plant.settle()
    assert [move for move, _ in plant.moves(post)] == [PENDING_PUBLISH, ERROR]
    for job in again:
        notes = [e.message for e in plant.engine.inspect.trail(job.id) if "publishing." in e.kind]
        assert notes == [f"post {post.id} is ERROR, and was before"]


@pytest.mark.shows("R-12")
def test_a_late_dead_letter_of_an_old_publication_has_no_effect_on_the_new_one(
    plant: Plant,
) -> None:
    break_(plant, "approve")
    old = plant.publish()
    with plant.running(plant.settings.saga_queue):
        plant.engine.wait(plant.jobs(statuses.MODERATE)[0].id, timeout=120)
    mend(plant)
    plant.posts.draft(old.slug, old.author_id)
    new = plant.posts.publish(old.slug, old.author_id)
    with plant.running(plant.settings.dlq_queue):
        plant.engine.wait(plant.jobs("dlq")[0].id, timeout=120)
    assert plant.find(new).status == PENDING_PUBLISH
    (letter,) = plant.letters()
    assert letter["state"] == "logged"
    assert "stale_publication" in letter["action"]
    with plant.running():
        assert plant.wait(new) == [PUBLISHED]
    with pytest.raises(statuses.StalePublication):
        plant.dead_letters.redrive(letter["id"], actor="ada")


@pytest.mark.shows("R-14")
def test_of_a_compensation_and_a_late_success_one_wins(plant: Plant) -> None:
    for number in range(10):
        post = plant.publish(f"Race {number}")
        about = post.id, post.publication_id
        told = at_once(
            lambda about=about: plant.saga.approve(*about, "moderation"),
            lambda about=about: plant.saga.reject(*about, "x", "dlq", failed_task="post.moderate"),
        )
        (refused,) = [each for each in told if isinstance(each, Exception)]
        found = plant.find(post)
        if found.status == REJECTED:
            assert isinstance(refused, statuses.AlreadyRejected)
        else:
            assert isinstance(refused, statuses.AlreadyApproved)
            assert found.verdict == statuses.APPROVED


@pytest.mark.shows("S-23")
def test_compensation_that_fails_is_tried_ten_times_more_and_then_seen(plant: Plant) -> None:
    break_(plant, "approve", "reject")
    post = plant.publish()
    with plant.running():
        plant.settle()
        assert plant.backend.calls["reject"] == 11
        assert plant.find(post).status == PENDING_PUBLISH
        (letter,) = plant.letters()
        assert letter["state"] == "compensation_failed"
        assert "BackendAway" in letter["action"]
        assert [*plant.dead_letters.list(state="compensation_failed")] == [letter]
        # The dead letter cares for the post; no sweep interferes.
        plant.saga._stuck_after = 0
        assert plant.saga.sweep() == 0
        mend(plant)
        plant.dead_letters.redrive(letter["id"], resume=True, actor="ada")
        assert plant.wait(post) == [PUBLISHED]
    assert plant.dead_letters.get(letter["id"])["state"] == "redriven"


@pytest.mark.shows("S-21")
@pytest.mark.parametrize("point", ["commit.inside", "commit.after"])
def test_a_dead_letter_is_written_with_the_failure_or_not_at_all(plant: Plant, point: str) -> None:
    plant.settings = replace(plant.settings, saga_max_retries=0)
    break_(plant, "approve")
    post = plant.publish()
    crashed = faults.run(live_worker, *place(plant), kill_at=point)
    assert crashed.killed, crashed.errors
    failed = plant.engine.jobs(JobFilter(role="failed"))
    assert len(failed) == len(plant.jobs("dlq")) == (1 if point == "commit.after" else 0)
    with plant.running():
        assert plant.wait(post) == [REJECTED]
    assert len(plant.letters()) == 1


# --- operators ----------------------------------------------------------------------


@pytest.mark.shows("S-24")
def test_a_redrive_resumes_the_post_and_its_task_with_the_same_event(each_way: Plant) -> None:
    plant = each_way
    post, letter = fail(plant, "preview")
    assert plant.find(post).status == ERROR
    with plant.running():
        told = plant.dead_letters.redrive(letter["id"], resume=True, actor="ada")
        assert (told["state"], told["event_id"]) == ("redriven", letter["event_id"])
        assert plant.wait(post) == [PUBLISHED]
    assert plant.find(post).publication_id == post.publication_id
    assert (PENDING_PUBLISH, statuses.RESUMED) in plant.moves(post)
    job = plant.engine.get(letter["id"])
    assert (job.state, job.round, job.attempt) == ("done", 2, 0)
    assert len(plant.jobs(statuses.GENERATE_PREVIEW)) == 1
    retried = [e for e in plant.engine.inspect.trail(job.id) if e.kind == "retried"]
    assert [(e.actor, e.message) for e in retried] == [("ada", "redrive")]
    for act in (plant.dead_letters.redrive, plant.dead_letters.discard):
        with pytest.raises(DeadLetterState, match="redriven"):
            act(letter["id"], actor="ada")
    assert [*plant.dead_letters.list(state="redriven")] == [plant.dead_letters.get(letter["id"])]


@pytest.mark.shows("S-24")
def test_a_task_that_fails_again_is_the_same_dead_letter_and_is_compensated_again(
    each_way: Plant,
) -> None:
    plant = each_way
    post, letter = fail(plant, "preview")
    break_(plant, "preview")
    with plant.running():
        plant.dead_letters.redrive(letter["id"], resume=True, actor="ada")
        # Its second round ends in ERROR as the first did.
        plant.wait(post)
    (again,) = plant.letters()
    assert (again["id"], again["round"], again["state"]) == (letter["id"], 2, "compensated")
    assert [move for move, _ in plant.moves(post)] == [PENDING_PUBLISH, ERROR] * 2
    assert len(plant.jobs("dlq")) == 2


@pytest.mark.shows("S-24")
@pytest.mark.parametrize("served_beside", MOSTLY_SQLITE, indirect=True)
def test_a_redrive_is_refused_when_the_author_went_on(plant: Plant) -> None:
    post, letter = fail(plant, "preview")
    plant.posts.edit(post.slug, post.author_id, body="another text")
    for resume in (True, False):
        with pytest.raises(statuses.StalePublication):
            plant.dead_letters.redrive(letter["id"], resume=resume, actor="ada")
    plant.posts.publish(post.slug, post.author_id)
    with pytest.raises(statuses.StalePublication):
        plant.dead_letters.redrive(letter["id"], resume=True, actor="ada")
    plant.posts.delete(post.slug, post.author_id)
    with pytest.raises(statuses.PostNotFound):
        plant.dead_letters.redrive(letter["id"], actor="ada")
    assert plant.dead_letters.get(letter["id"])["state"] == "compensated"


@pytest.mark.shows("S-24")
@pytest.mark.parametrize("served_beside", MOSTLY_SQLITE, indirect=True)
def test_nothing_is_put_back_while_its_compensation_is_under_way(plant: Plant) -> None:
    break_(plant, "preview")
    post = plant.publish()
    with plant.running(plant.settings.saga_queue):
        eventually(lambda: plant.jobs("dlq"))
    (letter,) = plant.letters()
    assert (letter["state"], letter["action"]) == ("waiting", None)
    with pytest.raises(DeadLetterState, match="waiting"):
        plant.dead_letters.redrive(letter["id"], actor="ada")
    # It may be discarded, and its post is compensated all the same.
    assert plant.dead_letters.discard(letter["id"], actor="ada")["state"] == "discarded"
    with plant.running():
        assert plant.wait(post) == [ERROR]


@pytest.mark.shows("S-24")
@pytest.mark.parametrize("served_beside", MOSTLY_SQLITE, indirect=True)
def test_a_rejected_post_is_not_resumed_and_its_letter_stays(plant: Plant) -> None:
    post, letter = fail(plant, "approve")
    with pytest.raises(statuses.InvalidStatus):
        plant.dead_letters.redrive(letter["id"], resume=True, actor="ada")
    assert plant.find(post).status == REJECTED
    assert plant.dead_letters.get(letter["id"])["state"] == "compensated"


def test_of_two_operators_one_puts_a_dead_letter_back(plant: Plant) -> None:
    post, letter = fail(plant, "preview")
    told = at_once(
        *[
            lambda: plant.dead_letters.redrive(letter["id"], resume=True, actor="ada")
            for _ in range(4)
        ]
    )
    done = [each for each in told if isinstance(each, dict)]
    assert len(done) == 1, told
    with plant.running():
        assert plant.wait(post) == [PUBLISHED]
    assert plant.engine.get(letter["id"]).round == 2


@pytest.mark.parametrize("served_beside", MOSTLY_SQLITE, indirect=True)
def test_a_discarded_dead_letter_stays_to_be_seen_and_is_over(plant: Plant) -> None:
    post, letter = fail(plant, "publish")
    assert plant.dead_letters.discard(letter["id"], actor="ada")["state"] == "discarded"
    assert plant.find(post).status == ERROR
    for act in (plant.dead_letters.redrive, plant.dead_letters.discard):
        with pytest.raises(DeadLetterState, match="discarded"):
            act(letter["id"], actor="bob")
    (listed,) = plant.letters()
    assert (listed["id"], listed["state"]) == (letter["id"], "discarded")
    for unknown in (str(uuid4()), "none", plant.jobs("dlq")[0].id):
        with pytest.raises(DeadLetterNotFound):
            plant.dead_letters.get(unknown)


@pytest.mark.shows("S-24")
def test_dead_letters_are_listed_by_pages_and_redriven_in_bulk_at_a_pace(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_(plant, "preview")
    posts = [plant.publish(f"Post {number}") for number in range(5)]
    with plant.running():
        plant.wait(*posts)
    mend(plant)
    every = plant.letters()
    assert {letter["post_id"] for letter in every} == {post.id for post in posts}
    ids = [letter["id"] for letter in every]
    assert ids == sorted(ids, reverse=True)
    assert [*plant.dead_letters.list(skip=1, limit=2)] == every[1:3]
    assert [*plant.dead_letters.list(state="logged")] == []
    plant.dead_letters.discard(every[0]["id"], actor="ada")
    gone = next(post for post in posts if post.id == every[1]["post_id"])
    plant.posts.delete(gone.slug, gone.author_id)
    pauses: list[float] = []
    monkeypatch.setattr(dead_letters.time, "sleep", pauses.append)
    told = dict(plant.dead_letters.redrive_all(actor="ada", resume=True, per_second=4.0))
    assert set(told) == {letter["id"] for letter in every[1:]}
    assert [id for id, error in told.items() if error] == [every[1]["id"]]
    assert pauses == [0.25] * 4
    with plant.running():
        plant.settle()
    assert [plant.find(post).status for post in posts if post.id != gone.id].count(PUBLISHED) == 3


@pytest.mark.shows("R-19")
@pytest.mark.parametrize("step", ["approve", "preview"])
def test_a_step_whose_answers_were_all_lost_is_not_compensated(each_way: Plant, step: str) -> None:
    break_(each_way, step, how=LOST)
    post = each_way.publish()
    with each_way.running():
        assert each_way.wait(post) == [PUBLISHED]
    (letter,) = each_way.letters()
    assert letter["state"] == "logged"
    assert "not compensated" in letter["action"]
    assert [move for move, _ in each_way.moves(post)] == [PENDING_PUBLISH, PUBLISHED]


@pytest.mark.shows("R-11", "S-22")
def test_a_post_whose_publication_was_never_answered_stays_published_and_is_told_of_once(
    each_way: Plant,
) -> None:
    author, readers = each_way.make_author(2)
    break_(each_way, "publish", how=LOST)
    post = each_way.publish(author=author)
    with each_way.running():
        assert each_way.wait(post) == [PUBLISHED]
    (letter,) = each_way.letters()
    # Compensation has asked for its notification too; that was lost, and is there all the same.
    assert letter["task"] == statuses.PUBLISH
    assert sorted(each_way.receiver.keys) == sorted(f"{post.id}:{reader}" for reader in readers)
    assert len(each_way.jobs(statuses.NOTIFY)) == 1
    assert [move for move, _ in each_way.moves(post)] == [PENDING_PUBLISH, PUBLISHED]
