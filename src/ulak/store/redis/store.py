"""The store itself: what comes in, what is claimed and committed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ulak.clock import Clock, Instant
from ulak.core.admission import StopRow
from ulak.core.change import (
    COMMITTED,
    Change,
    Committed,
    KeyTaken,
    LeaseLost,
    Receipt,
    SlotTaken,
    Stale,
)
from ulak.core.job import NewJob, Request
from ulak.errors import WriteRefused
from ulak.ids import to_text
from ulak.store.batches import SUSPECT_LAPSES, follow_each_other, is_full, must_be_a_batch
from ulak.store.protocol import (
    LARGEST_CLAIM_BYTES,
    Added,
    Claim,
    Claimed,
    ClaimRequest,
    Features,
    Progress,
    Renewal,
    Tick,
    jobs,
)
from ulak.store.protocol.control import must_be_ticks
from ulak.store.records import (
    FORGOTTEN,
    RecordId,
    record_details,
    record_subject,
)
from ulak.store.redis.control import Draft
from ulak.store.redis.demands import NO_ANSWER, SCHEMA, ask, check
from ulak.store.redis.listener import Listener
from ulak.store.redis.reads import RedisReads
from ulak.store.redis.records import RecordVerbs, record_key
from ulak.store.redis.scripts import MOST_CHANGED
from ulak.store.redis.values import (
    NUL,
    job_id,
    pack,
    raw,
    read_claims,
    read_requests,
    read_row,
    unpack,
    write_change,
    write_new,
    write_request,
)


class RedisStore(RedisReads, RecordVerbs):
    """A `Store` in one database of one Redis server, 7.0 or newer.

    Args:
        url: Where it is: `redis://host:port/database`.
        clock: Tells the time that decides, by default the server's.
        may_forget: The server may lose jobs: it keeps no log, or removes keys.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, may_forget: bool = False) -> None:
        super().__init__(url, clock=clock)
        self._may_forget = may_forget
        self.features = _features(durable=not may_forget, durability=NO_ANSWER)
        self._parked_after = ""
        self._opening = threading.Lock()
        self._listener: Listener | None = None

    def open(self) -> None:
        with self._opening:
            if self._listener is not None:
                return
            facts = check(self._server, may_forget=self._may_forget)
            is_durable = not facts.persistence.complaints
            self.features = _features(durable=is_durable, durability=facts.durability)
            self.call("look")
            self._listener = Listener(self._server, self._channel, lambda: self._me, self._ring)
            self._listener.start()
            super().open()

    def close(self) -> None:
        self._is_open = self._is_inherited = False
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
        self._server.close()

    def migrate(self) -> tuple[int, int]:
        return (SCHEMA, SCHEMA)

    def about(self) -> dict[str, object]:
        facts = ask(self._server)
        appends, flushes, policy = facts.persistence
        return {
            "redis": facts.version, "database": self._server.address,
            "appendonly": "yes" if appends else "no", "appendfsync": flushes,
            "maxmemory_policy": policy, "schema": SCHEMA, "newest_schema": SCHEMA,
        }  # fmt: skip

    @property
    def newest_schema(self) -> int:
        return SCHEMA

    @property
    def place(self) -> str:
        """Where it is, as far as its URL says."""
        return self._server.address

    def secrets(self) -> list[str]:
        """Return what must not be read in a log: the password that it connects with."""
        return self._server.secrets

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        self._opening = threading.Lock()
        self._listener = None

    def changed_elsewhere(self) -> bool:
        return self._listener is not None and self._listener.has_changed()

    def on_move(self, ring: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.add(ring)

    # What comes in ---------------------------------------------------------------

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        answers = self.call("add", [write_new(job) for job in jobs], kind="add")
        return [_read_added(job, *answer) for job, answer in zip(jobs, answers, strict=True)]

    def add_owner(self, job_id: bytes, owner: str, *, since: Instant | None = None) -> None:
        self.call("add_owner", to_text(job_id), owner, since, kind="add")

    def tick(self, ticks: Sequence[Tick]) -> list[bool]:
        must_be_ticks(ticks)
        ordered = sorted(ticks, key=lambda tick: tick.row.name)
        written = self.call(
            "tick",
            [
                {
                    "name": tick.row.name, "row": raw(pack(tick.row[1:])), "due_at": _due_at(tick),
                    "following": raw(pack(tick.row._replace(next_at=tick.next_at)[1:])),
                    "jobs": [write_new(job) for job in tick.jobs],
                }
                for tick in ordered
            ],
            kind="tick",
        )  # fmt: skip
        by_name = dict(zip([tick.row.name for tick in ordered], written, strict=True))
        return [bool(by_name[tick.row.name]) for tick in ticks]

    # Changes ---------------------------------------------------------------------

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        must_be_a_batch(changes)
        ordered = sorted(changes, key=lambda change: change.row.id)
        for change in ordered:
            _must_follow_each_other(change)
        written = [write_change(change) for change in ordered]
        if len(written) > MOST_CHANGED and (wrong := self.call("check", written)):
            raise _refused(*wrong)
        receipts: dict[bytes, Receipt] = {}
        for start in range(0, len(written), MOST_CHANGED):
            part = slice(start, start + MOST_CHANGED)
            became, answers = self.call("commit", written[part], kind="commit")
            if became == b"refused":
                raise _refused(*answers)
            for number, answer in answers:
                receipts[ordered[start + number - 1].row.id] = _read_receipt(answer)
        return [receipts.get(change.row.id, COMMITTED) for change in changes]

    def request(self, request: Request) -> bool:
        owner, field = to_text(request.job_id), NUL.join((request.kind, request.name))
        return bool(self.call("request", owner, field, raw(write_request(request)), kind="request"))

    def dismiss(self, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
        fields = [NUL.join(answer) for answer in answers]
        self.call("dismiss", to_text(job_id), fields, kind="dismiss")

    def report(self, progress: Sequence[Progress]) -> None:
        lines = [(to_text(one.job_id), json.dumps(one[1:])) for one in progress]
        self.call("report", lines, kind="report")

    # Leases ----------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> Claimed:
        """A call leases a hundred jobs at most, so that a large claim is several."""
        left = [max(want.places, 0) for want in request.wants]
        asked = {
            "worker": request.worker, "ageing": request.ageing_us, "suspects": request.suspects,
            "entries": {_entry(entry): busy for entry, busy in request.entries.items()},
            "keeps": {_entry(entry): True for entry in request.keeps},
        }  # fmt: skip
        claims: list[Claim] = []
        unparked = 0
        while True:
            wants = [
                {"lanes": want.lanes, "places": places}
                for want, places in zip(request.wants, left, strict=True)
            ]
            size = sum(len(claim.payload.data) for claim in claims)
            now, answer = self.call_at(
                "claim", {**asked, "wants": wants, "bytes": LARGEST_CLAIM_BYTES - size},
                kind="claim",
            )  # fmt: skip
            found, shares, requests, next_at, more, paused = answer
            taken = read_claims(*found)
            claims += taken
            unparked += more
            if len(taken) < MOST_CHANGED or is_full(request.wants, claims):
                break
            left = [places - share for places, share in zip(left, shares, strict=True)]
            asked["suspects"] = asked["suspects"] and not any(
                claim.row.lapses >= SUSPECT_LAPSES for claim in taken
            )
        return Claimed(
            claims,
            now,
            read_requests(requests),
            now if is_full(request.wants, claims) else None if next_at is None else int(next_at),
            unparked,
            frozenset(_pair(field) for field in paused),
        )

    def register(self, worker: str, *, lease_us: int, lanes: Sequence[str], about: str) -> Instant:
        served = " ".join(lanes)
        now, _ = self.call_at("register", worker, lease_us, served, about, kind="register")
        return now

    def renew(self, worker: str, *, lease_us: int) -> Renewal:
        now, (is_alive, *requests) = self.call_at("renew", worker, lease_us, kind="renew")
        return Renewal(bool(is_alive), now, read_requests(requests[0]) if requests else [])

    def unregister(self, worker: str) -> None:
        self.call("unregister", worker, kind="unregister")

    # Upkeep ----------------------------------------------------------------------

    def unpark(self, limit: int) -> int:
        unparked, after = self.call("unpark", limit, self._parked_after, kind="unpark")
        self._parked_after = after.decode()
        return int(unparked)

    def sweep(self, limit: int) -> int:
        return int(self.call("sweep", limit, kind="sweep"))

    def fold_counts(self) -> None:
        """Nothing to do: the sums themselves are kept."""

    def prune(
        self,
        *,
        before: Instant,
        limit: int,
        actor: str = "",
        note: str = "",
        of: tuple[str, str] | None = None,
    ) -> int:
        """A page of a flow is one call, and if somebody acts one line of audit."""
        # The call knows how many, and writes it where this says so many.
        details = jobs.prune_details(-1, before)
        said = (actor, jobs.PRUNE, jobs.PRUNE_SUBJECT, note, details) if actor else ()
        flows = sorted(self.do("SMEMBERS", "ulak:flows")) if of is None else [of[0].encode()]
        left = limit
        for flow in flows:
            asked = (flow.decode(), "" if of is None else of[1])
            offset, is_over = 0, False
            while left > 0 and not is_over:
                found = self.call("prune", before, left, *asked, offset, *said, kind="prune")
                pruned, offset, is_over = found
                left -= pruned
        return limit - left

    # Records ----------------------------------------------------------------------

    def forget_record(self, id: RecordId, *, actor: str, note: str) -> bool:
        def work(draft: Draft) -> bool:
            key = record_key(id)
            for field in ("owner_token", "updated_at"):
                draft.watch(key, field)
            (found,) = self.find_records([id])
            if found is None:
                return False
            details = json.dumps(record_details(found))
            draft.act("remove", key)
            draft.note(actor, FORGOTTEN, record_subject(id), note, details)
            return True

        return self._decide("record", work)


def _features(*, durable: bool, durability: str) -> Features:
    return Features(
        name="redis", durable=durable, shared=True, flow_control=True, removes_expired=True,
        batch=MOST_CHANGED, durability=durability,
    )  # fmt: skip


def _read_added(job: NewJob, became: bytes, found: bytes | None = None, stop: bytes = b"") -> Added:
    if became == b"stopped" and found is not None:
        return Added(job.row, False, StopRow(*_pair(found), *unpack(stop)))
    row = job.row if found is None else read_row(found)
    return Added(row, became != b"held")


def _due_at(tick: Tick) -> Instant:
    """Return when a schedule is due; one that is paused never is."""
    return tick.row.next_at if tick.row.paused_at is None else 2**62


def _must_follow_each_other(change: Change) -> None:
    before = change.row.seq - len(change.events)
    if not follow_each_other(change, before):
        raise _refused(to_text(change.row.id).encode(), b"events:" + str(before).encode())
    own = [message[:3] for message in change.messages]
    if len(set(own)) < len(own):
        raise _refused(to_text(change.row.id).encode(), b"messages")


def _refused(name: bytes, wrong: bytes) -> WriteRefused:
    kind, _, number = wrong.decode().partition(":")
    if kind == "messages":
        return WriteRefused(f"job {name.decode()}: two messages have one identity (job, seq, n)")
    return WriteRefused(
        f"job {name.decode()}: its events do not follow number {number} of the trail"
    )


def _read_receipt(answer: Sequence[Any]) -> Receipt:
    match answer:
        case [b"lost"]:
            return LeaseLost()
        case [b"stale", row]:
            return Stale(None if row is None else read_row(row))
        case [b"slot", limit]:
            return SlotTaken(limit.decode())
        case [b"key", holder]:
            return KeyTaken(job_id(holder.decode()))
    return Committed(tuple(read_requests(answer)))


def _entry(entry: tuple[str, int, str]) -> str:
    return NUL.join(map(str, entry))


def _pair(field: bytes) -> tuple[str, str]:
    kind, name = field.decode().split(NUL)
    return kind, name
