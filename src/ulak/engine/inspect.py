"""How things stand (counts, trails, reasons, acts, findings), and how long ended jobs are kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ulak.clock import to_datetime, to_instant
from ulak.core.backlog import Backlog, add_up
from ulak.core.bounds import must_be_short, storable_key
from ulak.core.flow import Flow
from ulak.engine.reads import find_result
from ulak.engine.verify import Finding, verify
from ulak.engine.view import Job, TrailEvent, event_view, hide, hide_result
from ulak.engine.why import Why, why
from ulak.errors import BadInput, JobNotFound
from ulak.ids import from_text, to_text
from ulak.store import codec
from ulak.store.protocol import AuditRow, CountRow

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel
    from ulak.store.protocol import Store


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One act of an operator."""

    position: int
    at: datetime
    actor: str
    act: str
    subject: str
    note: str | None
    details: Any


class Inspect:
    """`engine.inspect`: looks at everything and changes nothing."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    @property
    def flows(self) -> tuple[Flow[Any], ...]:
        """Every registered flow."""
        return self._kernel.flows

    def counts(self) -> list[CountRow]:
        """Return how many jobs stand in each state, exactly and cheaply."""
        return self._kernel.open().store.counts()

    def backlog(self) -> list[Backlog]:
        """Return how many jobs are due, delayed, parked, leased and held, by flow and queue, since
        when the first of them has been due or leased, and how many end in a second.

        Counted along indexes, at once however many jobs there are: up to 10,000 of a kind exactly,
        of more it may be that there are `at_least` so many.
        """
        standing = self._kernel.open().store.count_standing()
        return add_up(standing, {flow.name: flow.queue for flow in self.flows})

    def trail(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[TrailEvent]:
        """Return what happened to a job, in order."""
        row = self._kernel.get_row(job_id)
        return [event_view(e) for e in self._kernel.store.trail(row.id, after=after, limit=limit)]

    def payload(self, job_id: str, *, reveal: bool = False) -> Any:
        """Return a job's payload as plain data; secret fields are hidden unless revealed.

        Of a flow that this program does not declare all fields are hidden.
        """
        row = self._kernel.get_row(job_id)
        stored = self._kernel.store.find_payload(row.id)
        if stored is None:
            raise JobNotFound(job_id)
        plain = codec.decode(stored.data)
        return plain if reveal else hide(self._kernel.find_flow(row.flow, row.flow_version), plain)

    def result(self, job_id: str, *, reveal: bool = True) -> Any:
        """Return what the last stage that returned something has returned, or None, as plain data,
        however the job stands; its secret fields are hidden unless revealed.
        `TransitionNotAllowed`: this program does not declare its flow."""
        row = self._kernel.get_row(job_id)
        flow = self._kernel.get_flow(row)
        found = find_result(self._kernel, row, flow)
        plain = None if found is None else codec.decode(found.data)
        return plain if reveal else hide_result(flow, plain)

    def why(self, job_id: str, *, tenant: str | None = None) -> Why:
        """Return why a job stands where it stands: a code, a sentence and the facts.

        With a tenant no job of another one is named. `JobNotFound`: there is none.
        """
        return why(self._kernel, job_id, tenant=tenant)

    def verify(self) -> list[Finding]:
        """Look at everything that is stored and return what is wrong; workers may go on."""
        return verify(self._kernel)

    def audit(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditLine]:
        """Return what operators did, the latest first; `before` is the last position of a page."""
        store = self._kernel.open().store
        return [_line(r) for r in store.audit_trail(subject=subject, before=before, limit=limit)]


def _line(row: AuditRow) -> AuditLine:
    details = codec.decode(row.details.encode())
    return AuditLine(
        row.position, to_datetime(row.at), row.actor, row.act, row.subject, row.note, details
    )


class Owned(NamedTuple):
    """A job of an owner."""

    since: datetime
    """When they became an owner of it."""
    job_id: str


class Owners:
    """`engine.owners`: who owns the jobs of flows with `owners=True`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def all(self, job_id: str) -> list[str]:
        """Return who owns a job, in the order in which they became owners; `JobNotFound`: there is
        none."""
        row = self._kernel.get_row(job_id)
        return self._kernel.store.find_owners(row.id)

    def jobs(self, owner: str, *, before: Owned | None = None, limit: int = 100) -> list[Owned]:
        """Return the jobs of an owner, the last first by when they became one; `before` is the last
        one of the page before. `JobFilter(owner=)` lists them by id, with other conditions."""
        place = None if before is None else (to_instant(before.since), from_text(before.job_id))
        found = self._kernel.open().store.find_owned(owner, before=place, limit=limit)
        return [Owned(to_datetime(at), to_text(job_id)) for at, job_id in found]

    def add(
        self, job_id: str, owner: str, *, since: datetime | None = None, connection: Any = None
    ) -> None:
        """Let one more own a job, in whatever state it is, as a repeat of its submit does; twice is
        nothing. With `connection`, your own open transaction, it counts when you commit.

        `since` is for owners that were kept elsewhere; of two times the earlier one counts.
        `BadInput`: the flow keeps no owners, this is no name, or `since` has no time zone.
        `JobNotFound`: there is no such job.
        """
        storable_key(owner, "owner=")
        if since is not None and since.tzinfo is None:
            raise BadInput(f"since={since} has no time zone; name one, such as UTC")

        def write(store: Store) -> None:
            row = self._kernel.get_row(job_id, store)
            flow = self._kernel.find_flow(row.flow, row.flow_version)
            if flow is not None and not flow.owners:
                raise BadInput(f"{row.flow} keeps no owners; declare it with Flow(owners=True)")
            store.add_owner(row.id, owner, since=None if since is None else to_instant(since))

        self._kernel.acting_on(connection, "owners.add", write)


class Retention:
    """`engine.retention`: finds jobs that ended long ago, and removes them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def ended(
        self, flow: str, state: str, *, before: datetime, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return finished jobs that came into this state of a flow before then, by id; `after` is
        the id of the last one of the page before. Reads no younger ones."""
        cursor = b"" if after is None else from_text(after)
        rows = self._kernel.open().store.ended(
            flow, state, before=to_instant(before), limit=limit, after=cursor
        )
        return [Job(row) for row in rows]

    def prune(
        self,
        *,
        ended_before: datetime,
        of: tuple[str, str] | None = None,
        limit: int = 500,
        actor: str = "",
        note: str = "",
    ) -> int:
        """Remove jobs that ended before then, with their trails; return how many, `limit` at most.

        Proofs stay, and so does a job that is still needed: one whose dedup key is kept until a
        date, or with messages that are not sent.

        Args:
            ended_before: Younger ones stay.
            of: Only those of a (flow, state).
            limit: How many at once; call again until fewer are answered.
            actor: Who removes them, for the audit; nobody writes no line.
            note: Why, for people.
        """
        store = self._kernel.open().store
        before, note = to_instant(ended_before), must_be_short(note)
        return store.prune(before=before, limit=limit, actor=actor, note=note, of=of)
