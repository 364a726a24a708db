"""Dead letters: tasks that have failed for good, their compensation, and what operators do.

There is no table. A dead letter is the failed job of a task; its compensation is the job of the
flow `dlq` that was submitted in the commit that failed it; both trails tell the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ulak import Job, JobFilter, JobNotFound, Run, StaleJob, TransitionNotAllowed
from ulak.errors import BadInput, ServiceError, UlakError
from ulak.kit.clock import rfc3339
from ulak.services.publishing import statuses
from ulak.services.publishing.backend import LONGEST_TEXT, StepPassed
from ulak.services.publishing.events import Event, TaskRefused, read_payload, step
from ulak.services.publishing.handling import Tools, task
from ulak.services.publishing.queue import REDRIVEN

if TYPE_CHECKING:
    from ulak.services.publishing.queue import Queue
    from ulak.services.publishing.saga import Saga

log = logging.getLogger("ulak.publishing")

Letter = dict[str, Any]
"""A dead letter as JSON has it, by the names of section 7."""

COMPENSATED: Final = "publishing.compensated"
LOGGED: Final = "publishing.logged"
_STATE_OF: Final = {COMPENSATED: "compensated", LOGGED: "logged"}
_SETTLED: Final = frozenset({"compensated", "logged", "compensation_failed"})
"""The states from which it is put back: its compensation must not come in between."""
_ENDED: Final = ("failed", "expired")
_MEMBER_OF: Final = dict.fromkeys(statuses.SAGA_TASKS, "error_message") | {
    statuses.MODERATE: "reason",
}  # fmt: skip
"""The tasks that are compensated: the post is rejected with a reason, or gets a message."""
LONGEST_TRACEBACK: Final = 4096
LONGEST_TRAIL: Final = 100_000


class DeadLetterNotFound(ServiceError):
    """There is no such dead letter."""

    code, status = "not_found", 404


class DeadLetterState(ServiceError):
    """The dead letter does not stand where this can be done with it."""

    code, status = "dead_letter_state", 409


class DeadLetters:
    """The dead letters of a queue, for operators and for compensation."""

    def __init__(self, queue: Queue, saga: Saga) -> None:
        self._queue, self._engine, self._saga = queue, queue.engine, saga

    def list(self, *, state: str | None = None, limit: int = 50, skip: int = 0) -> Sequence[Letter]:
        """Return dead letters, newest first; with `state` only those that stand there."""
        found = (letter for letter in self._walk() if state in (None, letter["state"]))
        return [*islice(found, skip, skip + limit)]

    def get(self, id: str) -> Letter:
        """Return one dead letter. Raises `DeadLetterNotFound`."""
        try:
            letter = self._read(self._engine.get(id))
        except (JobNotFound, BadInput):
            letter = None
        if letter is None:
            raise DeadLetterNotFound(f"there is no dead letter {id}")
        return letter

    def redrive(self, id: str, *, resume: bool = False, actor: str) -> Letter:
        """Put a task back, in a new round, with the same event. With `resume` its post goes from
        ERROR to PENDING_PUBLISH in the same transaction.

        Raises `DeadLetterState`: it is not in one of `_SETTLED`, or names no post to resume;
        `StalePublication`: the author has changed or published the post since; `PostNotFound`, and
        with `resume` `InvalidStatus`.
        """
        letter = self._get_in(_SETTLED, id)
        event = _find_event(letter["payload"])
        if event is None and resume:
            raise DeadLetterState(f"dead letter {id} names no post; redrive it without resume")
        try:
            if event is None or not self._must_resume(letter["task"], event, resume):
                self._queue.put_back(id, letter["round"], actor)
            else:
                place = event.post_id, event.publication_id, event.revision
                with step("dlq.resume"), self._saga.tables.writing() as connection:
                    self._saga.resume(connection, *place, actor)
                    self._queue.put_back(id, letter["round"], actor, connection=connection)
        except (TransitionNotAllowed, StaleJob) as error:
            raise DeadLetterState(f"dead letter {id}: {error}") from error
        # One that the relay puts back is about to be so.
        return self.get(id) | {"state": "redriven"}

    def redrive_all(
        self, *, actor: str, task: str | None = None, resume: bool = False, per_second: float = 5.0
    ) -> Iterator[tuple[str, UlakError | None]]:
        """Redrive every dead letter, of one task or of all, that was neither redriven nor
        discarded, so many in a second; yield each id, with the error of one that could not be."""
        dead = (letter for letter in self._walk() if letter["state"] in _SETTLED)
        for id in [letter["id"] for letter in dead if task in (None, letter["task"])]:
            error: UlakError | None = None
            try:
                self.redrive(id, resume=resume, actor=actor)
            except UlakError as refusal:
                error = refusal
            yield id, error
            time.sleep(1 / per_second)

    def discard(self, id: str, *, actor: str) -> Letter:
        """Give a dead letter up. Raises `DeadLetterNotFound`, `DeadLetterState`."""
        self._get_in({"waiting", *_SETTLED}, id)
        try:
            with step("dlq.discard"):
                self._engine.expire(id, actor=actor, state="failed")
        except (TransitionNotAllowed, StaleJob) as error:
            raise DeadLetterState(f"dead letter {id}: {error}") from error
        return self.get(id)

    def _get_in(self, states: Collection[str], id: str) -> Letter:
        letter = self.get(id)
        if letter["state"] not in states:
            known = ", ".join(sorted(states))
            raise DeadLetterState(f"dead letter {id} is {letter['state']}, not one of {known}")
        return letter

    def _must_resume(self, task: str, event: Event, resume: bool) -> bool:
        """Tell whether the post of an event has to be resumed. Raises `StalePublication`."""
        post = self._saga.find(event.post_id)
        # What is published may be edited, and its subscribers are told all the same.
        is_edited = post.revision != event.revision and task != statuses.NOTIFY
        if is_edited or post.publication_id != event.publication_id:
            said = f"post {post.id} was changed or published since by its author"
            raise statuses.StalePublication(said, post.status)
        return resume and post.status != statuses.PENDING_PUBLISH

    def _walk(self) -> Iterator[Letter]:
        """Find every dead letter, newest first."""
        saga = self._queue.tasks.saga
        filters = [JobFilter(flow=flow.name, role=role) for flow in saga for role in _ENDED]
        redriven = (job for job in self._page(JobFilter(owner=REDRIVEN)) if job.role not in _ENDED)
        pages = [*map(self._page, filters), redriven]
        for job in merge(*pages, key=lambda job: job.id, reverse=True):
            if (letter := self._read(job)) is not None:
                yield letter

    def _page(self, where: JobFilter) -> Iterator[Job]:
        after = None
        while page := self._engine.jobs(where, after=after):
            yield from page
            after = page[-1].id

    def _read(self, job: Job) -> Letter | None:
        """Return the dead letter that a job is, or was before it was redriven."""
        if all(job.flow != flow.name for flow in self._queue.tasks.saga):
            return None
        trail = self._engine.inspect.trail(job.id, limit=LONGEST_TRAIL)
        failures = [line for line in trail if line.kind in ("retry", "failed")]
        last = next((line for line in reversed(failures) if line.kind == "failed"), None)
        if last is None:
            return None
        first = next(line for line in failures if line.round == last.round)
        payload, details = self._engine.inspect.payload(job.id), last.details or {}
        members = payload if isinstance(payload, dict) else {}
        state, action = self._stand(job, last.round)
        return {
            "id": job.id,
            **{name: members.get(name) for name in ("event_id", "publication_id", "post_id")},
            "task": members.get("task", job.flow),
            "queue": self._queue.tasks.find(job.flow).queue,
            "payload": payload,
            "error_class": details.get("type", last.code), "error": last.message, "code": last.code,
            "traceback": details.get("traceback", "")[-LONGEST_TRACEBACK:],
            "attempts": last.attempt,
            "first_failed_at": rfc3339(first.at), "died_at": rfc3339(last.at),
            "state": state, "action": action, "round": last.round,
        }  # fmt: skip

    def _stand(self, job: Job, round: int) -> tuple[str, str | None]:
        """Return the state of a dead letter, and what compensation did or why it could not."""
        where = JobFilter(flow=self._queue.tasks.dlq.name, dedup_key=f"{job.id}:{round}")
        found = self._engine.jobs(where, limit=1)
        trail = self._engine.inspect.trail(found[0].id, limit=LONGEST_TRAIL) if found else []
        acts = [(_STATE_OF[line.kind], line.message) for line in trail if line.kind in _STATE_OF]
        if not acts and found and found[0].role not in ("ready", "busy"):
            acts = [("compensation_failed", trail[-1].message)]
        state, action = acts[-1] if acts else ("waiting", None)
        if job.role != "failed":
            state = "discarded" if job.role == "expired" else "redriven"
        return state, action


@task(max_retries=10, retry_backoff=True, retry_jitter=True, setting="")
async def compensate(run: Run[Any]) -> None:
    """Undo what a dead letter has left half done, by the internal endpoints; twice is nothing."""
    tools = run.resource(Tools)
    with step("dlq.find"):
        letter = await asyncio.to_thread(tools.dead_letters.get, run.payload["dead_letter"])
    if letter["state"] == "redriven" or letter["round"] != run.payload["round"]:
        run.note(LOGGED, "it was put back before it was compensated")
        return
    name, event = letter["task"], _find_event(letter["payload"])
    member = _MEMBER_OF.get(name)
    if member is None or event is None:
        # Nobody waits for a notification; at whatever else is left, somebody must look.
        level = logging.WARNING if name == statuses.NOTIFY else logging.ERROR
        facts = {"task": name, "dead_letter": letter["id"], "code": letter["code"]}
        log.log(level, "a task has failed for good, and no post is changed", extra=facts)
        run.note(LOGGED, "no post is changed")
        return
    # An id of its own: these calls are others than those of the task.
    event = replace(event, event_id=run.job_id)
    why = f"{name} failed: {letter['error']}"[:LONGEST_TEXT]
    call = "dlq.reject" if member == "reason" else "dlq.error"
    try:
        data = await tools.backend.call(call, event, **{member: why, "failed_task": name})
    except StepPassed as passed:
        if name == statuses.PUBLISH:
            # If it is published, this sees to it that its subscribers are told.
            with suppress(StepPassed):
                await tools.backend.call("dlq.publish", event)
        run.note(LOGGED, f"not compensated: {passed}")
    else:
        before = "" if data["changed"] else ", and was before"
        run.note(COMPENSATED, f"post {event.post_id} is {data['status']}{before}")


def _find_event(payload: Any) -> Event | None:
    try:
        return read_payload(payload)
    except TaskRefused:
        return None
