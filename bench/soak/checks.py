"""What must hold after the storm: the ledger of the outside against the trails of the store."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from bench.soak.ledger import Line
from bench.soak.orders import (
    ENDS,
    GOOD_ENDS,
    LIMITS,
    STAGES,
    UNDO_OF,
    Order,
    has_receipt,
    key_of,
    order,
)
from ulak.core import event as kinds
from ulak.core.job import Event, JobRow
from ulak.core.lifecycle import DONE, FINAL
from ulak.ids import to_text
from ulak.store.protocol import Store

EXPECTED_HOLDS = frozenset({"look", kinds.UNDO_FAILED, kinds.WORKER_DIED, None})
A_PAGE = 500


class Evidence:
    """Everything that is looked at: the ledger, the rows and the trails."""

    def __init__(self, store: Store, lines: Sequence[Line], *, jobs: int, seed: int) -> None:
        self.lines = lines
        self.orders = {n: order(seed, n) for n in range(jobs)}
        self.rows: dict[str, JobRow] = {}
        self.trails: dict[str, list[Event]] = {}
        self.messages: set[str] = set()
        self.notices: Counter[tuple[str, int, str]] = Counter()
        """What was told of ends: job, round and state."""
        after = b""
        while page := store.scan_jobs(after=after, limit=A_PAGE):
            for row in page:
                job = to_text(row.id)
                self.rows[job] = row
                self.trails[job] = store.trail(row.id)
                payload = store.find_payload(row.id) if row.flow == "notice" else None
                if payload is not None:
                    self.notices[tuple(json.loads(payload.data))] += 1
                self.messages.update(
                    f"{job}/{m.message.seq}/{m.message.n}" for m in store.scan_messages(row.id)
                )
            after = page[-1].id
        self.numbers = {key_of(placed): n for n, placed in self.orders.items()}

    def of(self, kind: str) -> Iterator[Line]:
        """Return the lines of one kind, in the order of writing."""
        return (line for line in self.lines if line.kind == kind)

    def order_of(self, row: JobRow) -> Order:
        """Return the order that a job was submitted with."""
        return self.orders[self.numbers[row.dedup_key or ""]]

    def jobs(self, flow: str) -> Iterator[tuple[str, JobRow]]:
        """Return the jobs of one flow."""
        return ((job, row) for job, row in self.rows.items() if row.flow == flow)


def violations(seen: Evidence) -> Iterator[str]:
    """Say everything that is wrong, a sentence each."""
    for check in (
        _every_accepted_job_is_there,
        _one_job_for_each_order,
        _every_job_has_ended_as_it_should,
        once_is_once,
        _a_lease_runs_a_stage_once,
        _no_limit_was_exceeded,
        _what_began_was_undone,
        _every_message_was_sent,
        _every_receipt_is_there,
        _every_end_was_told_once,
    ):
        yield from check(seen)


def _every_accepted_job_is_there(seen: Evidence) -> Iterator[str]:
    for line in seen.of("accepted"):
        n, job, _ = line.words
        if job not in seen.rows:
            yield f"order {n} was accepted as job {job}, which is not in the store"
        elif seen.order_of(seen.rows[job]).n != int(n):
            yield f"order {n} was answered with job {job} of another order"


def _one_job_for_each_order(seen: Evidence) -> Iterator[str]:
    found = Counter(seen.order_of(row).n for _, row in seen.jobs("order"))
    for n in seen.orders:
        if found[n] != 1:
            yield f"order {n} has {found[n]} jobs"


def _every_job_has_ended_as_it_should(seen: Evidence) -> Iterator[str]:
    for job, row in seen.rows.items():
        if row.role not in FINAL:
            yield f'job {job} ({row.flow}) has not ended: "{row.state}", {row.code}'
        elif row.flow == "order":
            placed = seen.order_of(row)
            if row.state not in ENDS.get(placed.trouble, GOOD_ENDS):
                yield f'job {job} ({placed.trouble}) ended in "{row.state}" ({row.code})'
        for event in seen.trails[job]:
            if event.kind == kinds.HELD and event.code not in EXPECTED_HOLDS:
                yield f"job {job} was held with {event.code}: {event.message}"


def once_is_once(seen: Evidence) -> Iterator[str]:
    """No effect ran again after its result was committed; each counts once by its key."""
    noted: dict[str, list[int]] = defaultdict(list)
    for job, trail in seen.trails.items():
        for event in trail:
            if event.kind == kinds.NOTED:
                noted[f"{job}/{event.round}/{event.message}"].append(event.token)
    happened: dict[str, list[int]] = defaultdict(list)
    for line in seen.of("effect"):
        happened[line.words[0]].append(int(line.words[1]))
    for key, tokens in noted.items():
        if len(tokens) > 1:
            yield f"{key} is recorded {len(tokens)} times"
        if happened[key].count(tokens[0]) != 1:
            yield f"{key} is recorded under token {tokens[0]}, it happened under {happened[key]}"
        for token in happened[key]:
            if token > tokens[0]:
                yield f"{key} ran again under token {token}, recorded under {tokens[0]}"
    for job, row in seen.jobs("order"):
        wanted = STAGES if row.state == "done" else ()
        for name in wanted:
            if f"{job}/{row.round}/{name}" not in noted:
                yield f"job {job} is done and the effect of {name} is not recorded"


def _a_lease_runs_a_stage_once(seen: Evidence) -> Iterator[str]:
    begun = Counter((*line.words, line.pid) for line in seen.of("begin"))
    holders: dict[tuple[str, str], set[int]] = defaultdict(set)
    for (key, token, pid), times in begun.items():
        if times > 1:
            yield f"{key} was begun {times} times under token {token}"
        holders[key.split("/")[0], token].add(pid)
    for (job, token), pids in holders.items():
        if len(pids) > 1:
            yield f"job {job}: token {token} was held by {len(pids)} processes"


def _no_limit_was_exceeded(seen: Evidence) -> Iterator[str]:
    for limit, (most, places) in occupancy(seen.lines).items():
        if most > places:
            yield f"{most} were in {limit} at once, {places} are allowed"


def occupancy(lines: Sequence[Line]) -> dict[str, tuple[int, int]]:
    """Return for each limit how many were inside at most, and how many may be."""
    inside: dict[str, set[tuple[int, str, str]]] = {limit: set() for limit in LIMITS}
    most = dict.fromkeys(LIMITS, 0)
    for line in lines:
        if line.kind == "dead":
            for limit, runs in inside.items():
                inside[limit] = {run for run in runs if run[0] != line.pid}
        elif line.kind in ("in", "out"):
            limit, job, token = line.words
            run = (line.pid, job, token)
            (inside[limit].add if line.kind == "in" else inside[limit].discard)(run)
            most[limit] = max(most[limit], len(inside[limit]))
    return {limit: (most[limit], places) for limit, places in LIMITS.items()}


def _what_began_was_undone(seen: Evidence) -> Iterator[str]:
    began: dict[tuple[str, int], list[str]] = defaultdict(list)
    undone: dict[tuple[str, int], list[str]] = defaultdict(list)
    stage_of = {undo: stage for stage, undo in UNDO_OF.items()}
    for line in seen.lines:
        if line.kind not in ("begin", "effect"):
            continue
        job, round_, *_, name = line.words[0].split("/")
        at = (job, int(round_))
        if line.kind == "begin" and name in UNDO_OF and name not in began[at]:
            began[at].append(name)
        elif line.kind == "effect" and name in stage_of and stage_of[name] not in undone[at]:
            undone[at].append(stage_of[name])
    for (job, round_), stages in began.items():
        row = seen.rows.get(job)
        if row is None:
            yield f"job {job} ran and is not in the store"
            continue
        good = row.round == round_ and row.role == DONE and row.state != "refused"
        wanted = set() if good else set(stages)
        got = undone[job, round_]
        if good and got:
            yield f"job {job} ended well and {got} were undone in round {round_}"
        if not wanted <= set(got):
            yield f"job {job}: {sorted(wanted - set(got))} began in round {round_}, never undone"
        reverse = [stage for stage in reversed(STAGES) if stage in got]
        if got != reverse:
            yield f"job {job}: undone in the order {got}"


def _every_message_was_sent(seen: Evidence) -> Iterator[str]:
    sent = {line.words[0] for line in seen.of("sent")}
    for message in sorted(seen.messages - sent):
        yield f"message {message} was never sent"
    for message in sorted(sent - seen.messages):
        yield f"message {message} was sent and is in no outbox"
    posted = Counter(message.split("/")[0] for message in seen.messages)
    for job, row in seen.jobs("order"):
        wanted = int(row.state == "done")
        if posted[job] != wanted:
            yield f'job {job} in "{row.state}" has {posted[job]} messages'


def _every_receipt_is_there(seen: Evidence) -> Iterator[str]:
    wanted = sum(
        row.state == "done" and has_receipt(seen.order_of(row)) for _, row in seen.jobs("order")
    )
    found = sum(1 for _ in seen.jobs("receipt"))
    if wanted != found:
        yield f"{found} receipts were spawned, {wanted} should be"


def _every_end_was_told_once(seen: Evidence) -> Iterator[str]:
    wanted: Counter[tuple[str, int, str]] = Counter()
    for job, row in seen.jobs("order"):
        # Only failed jobs are retried, so every round but the last ended there.
        wanted.update((job, round_, "failed") for round_ in range(1, row.round))
        if row.state != "done" and row.role in FINAL:
            wanted[job, row.round, row.state] += 1
    for job, round_, state in sorted((wanted - seen.notices) + (seen.notices - wanted)):
        told = seen.notices[job, round_, state]
        yield f'job {job} in round {round_}: its end in "{state}" was told {told} times'
