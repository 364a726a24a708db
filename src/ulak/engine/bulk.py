"""One act on every job that a filter matches: counted first, then confirmed with a token.

Jobs are changed in batches, each guarded as if it were asked alone: of a job that has moved
meanwhile, or that will not have the act, the answer says so, and its neighbours do not notice.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Collection, Iterator
from dataclasses import KW_ONLY, asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from ulak.clock import Instant, micros, rfc3339, to_datetime
from ulak.core.acts import answer
from ulak.core.change import Change, Committed, KeyTaken
from ulak.core.flow import Flow, names
from ulak.core.job import JobRow
from ulak.core.lifecycle import BUSY, FAILED, HELD, READY, WAITING
from ulak.core.outcome import Asked, Cancel, Release, Retry
from ulak.engine.acts import decision, key_taken, with_reason
from ulak.engine.engine import Engine
from ulak.errors import BadInput, Contended, StaleJob, TransitionNotAllowed, UlakError
from ulak.ids import to_text
from ulak.store.protocol import LARGEST_BATCH, JobFilter

RETRY: Final = "retry"
CANCEL: Final = "cancel"
RELEASE: Final = "release"
DECIDE: Final = "decide"
APPROVE: Final = "approve"

ACTS_ON: Final = {
    RETRY: (FAILED,),
    CANCEL: (READY, BUSY, WAITING, HELD),
    RELEASE: (HELD,),
    DECIDE: (HELD,),
    APPROVE: (HELD,),
}
"""What can be done, and the roles in which a job can have it done."""

TOKEN_LASTS: Final = timedelta(minutes=10)
# Half a minute on a disk that flushes slowly; then the caller hears how far it has come.
MOST_ACTS: Final = 10_000
# Jobs that will not have it stay where they are, and cost only to be looked at.
MOST_LOOKS: Final = 100_000
MOST_TOLD: Final = 100


@dataclass(frozen=True, slots=True)
class BulkAct:
    """What is to be done, and to which jobs."""

    action: str
    where: JobFilter
    _: KW_ONLY
    choice: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does it."""

    name: str
    _: KW_ONLY
    tenant: str | None = None
    roles: Collection[str] | None = None
    """What gates are told; None when the caller vouches for them."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many jobs it would be, and what confirms it."""

    count: int
    token: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Refusal:
    """A job that would not have it, and why."""

    id: str
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class BulkDone:
    """How far it has come."""

    done: int
    refused: list[Refusal]
    """The first of them."""
    refused_count: int
    left: int
    """Jobs that match and were not looked at; the same token goes on."""


class Refusals:
    """How many jobs would not have it, and the first of them."""

    def __init__(self) -> None:
        self.first: list[Refusal] = []
        self.count = 0

    def add(self, row: JobRow, error: UlakError) -> None:
        self.count += 1
        if len(self.first) < MOST_TOLD:
            self.first.append(Refusal(to_text(row.id), error.code, str(error)))


class Bulk:
    """Acts in bulk on the jobs of one engine. `key` signs tokens: who takes those of another
    process has the same."""

    def __init__(self, engine: Engine, key: bytes) -> None:
        self._engine = engine
        self._kernel = engine.kernel
        self._key = key

    def count(self, act: BulkAct, actor: Actor) -> Counted:
        """Count what the filter matches; `BadInput` if the act makes no sense. Nothing is
        changed."""
        _check(act)
        store = self._kernel.open().store
        count = sum(store.count_jobs(where) for where in _each(act))
        expires = store.clock.now() + micros(TOKEN_LASTS)
        token = f"{expires}.{self._sign(act, actor, expires)}"
        return Counted(count, token, to_datetime(expires))

    def do(self, act: BulkAct, actor: Actor, *, token: str) -> BulkDone:
        """Do it to everything that the filter matches now, at most to 10,000 jobs. `BadInput`: the
        token is old, or was given for something else."""
        _check(act)
        self._kernel.open()
        self._must_confirm(act, actor, token)
        return _Doing(self._engine, act, actor).do()

    def _sign(self, act: BulkAct, actor: Actor, expires: Instant) -> str:
        said = [act.action, act.choice, asdict(act.where), actor.name, actor.tenant, expires]
        text = json.dumps(said, sort_keys=True, default=str)
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def _must_confirm(self, act: BulkAct, actor: Actor, token: str) -> None:
        date, _, _ = token.partition(".")
        expires = int(date) if date.isascii() and date.isdigit() and len(date) < 20 else 0
        expected = f"{expires}.{self._sign(act, actor, expires)}"
        if not hmac.compare_digest(expected.encode(), token.encode("utf-8", "replace")):
            raise BadInput(
                "this token was given for another action, filter, choice or caller, or by a "
                "server with another secret; ask again without a token and confirm that answer"
            )
        if expires <= self._kernel.store.clock.now():
            raise BadInput(
                f"this token could be used until {rfc3339(to_datetime(expires))}; "
                "ask again without a token"
            )


class _Doing:
    def __init__(self, engine: Engine, act: BulkAct, actor: Actor) -> None:
        self._engine = engine
        self._kernel = engine.kernel
        self._store = engine.kernel.store
        self._act = act
        self._actor = actor
        self._done = 0
        self._refused = Refusals()

    def do(self) -> BulkDone:
        left = 0
        for where in _each(self._act):
            after: bytes | None = None
            while not self._is_enough and (rows := self._page(where, after)):
                self._do_batch(rows)
                after = rows[-1].id
            if self._is_enough:
                # Also what it has not come to: where it is, and in the roles after that.
                left += self._store.count_jobs(where, after=after)
        return BulkDone(self._done, self._refused.first, self._refused.count, left)

    @property
    def _is_enough(self) -> bool:
        return self._done >= MOST_ACTS or self._done + self._refused.count >= MOST_LOOKS

    def _page(self, where: JobFilter, after: bytes | None) -> list[JobRow]:
        limit = min(LARGEST_BATCH, MOST_ACTS - self._done)
        return self._store.list_jobs(where, after=after, limit=limit)

    def _do_batch(self, rows: list[JobRow]) -> None:
        changes: list[tuple[JobRow, Change]] = []
        now = self._store.clock.now()
        for row in rows:
            try:
                if row.leased_by is not None:
                    self._do_leased(row)
                else:
                    changes.append((row, self._change(row, now)))
            except (BadInput, StaleJob, TransitionNotAllowed) as error:
                self._refused.add(row, error)
        self._commit(changes)

    def _do_leased(self, row: JobRow) -> None:
        if self._act.action != CANCEL:
            raise TransitionNotAllowed(
                f'job {to_text(row.id)} is in "{row.state}" and a worker runs it now'
            )
        self._engine.cancel(to_text(row.id), actor=self._actor.name, note=self._act.note)
        self._done += 1

    def _change(self, row: JobRow, now: Instant) -> Change:
        flow = self._kernel.get_flow(row)
        asked = with_reason(self._store, row, self._asked(flow, row, now))
        commit_id = self._kernel.new_commit_id()
        change = answer(flow, row, asked, now, commit_id=commit_id, roles=self._actor.roles)
        assert change is not None  # noqa: S101 - only the clock may have nothing to do yet
        return change

    def _asked(self, flow: Flow[Any], row: JobRow, now: Instant) -> Asked:
        who, note = self._actor.name, self._act.note
        match self._act.action:
            case "retry":
                return Retry(who, note)
            case "cancel":
                return Cancel(who, note)
            case "release":
                return Release(who, note)
            case _:
                return decision(flow, row, self._act.choice or None, actor=who, note=note, now=now)

    def _commit(self, changes: list[tuple[JobRow, Change]]) -> None:
        if not changes:
            return
        batch, began = [change for _, change in changes], time.monotonic()
        try:
            receipts = self._store.commit(batch)
            self._kernel.telemetry.committed(batch, receipts, time.monotonic() - began)
        except Contended as error:
            if len(changes) == 1:
                self._refused.add(changes[0][0], error)
                return
            # One of them must wait for somebody; the others need not.
            for change in changes:
                self._commit([change])
            return
        for (row, _), receipt in zip(changes, receipts, strict=True):
            if isinstance(receipt, Committed):
                self._done += 1
            elif isinstance(receipt, KeyTaken):
                self._refused.add(row, key_taken(row, receipt))
            else:
                job_id = to_text(row.id)
                moved = f"job {job_id} has moved meanwhile; read it again"
                self._refused.add(row, StaleJob(moved, job_id=job_id))


def _each(act: BulkAct) -> Iterator[JobFilter]:
    for role in ACTS_ON[act.action]:
        if act.where.role in (None, role):
            yield replace(act.where, role=role)


def _check(act: BulkAct) -> None:
    if act.action not in ACTS_ON:
        raise BadInput(f"there is no bulk action {act.action!r}; there are {names(list(ACTS_ON))}")
    if (act.action == DECIDE) != bool(act.choice):
        raise BadInput("decide takes a choice, and nothing else does")
    roles = ACTS_ON[act.action]
    if act.where.role is not None and act.where.role not in roles:
        raise BadInput(
            f"{act.action} is for jobs that are {names(list(roles))}, not {act.where.role}"
        )
