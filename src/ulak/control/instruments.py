"""What one engine counts: jobs, claims, commits, runs and messages."""

from __future__ import annotations

from collections import Counter as Counted
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, get_args

from ulak.control.signals import PDF
from ulak.control.subsystems import registered
from ulak.control.tallies import (
    ALONE,
    OTHER,
    Counter,
    Family,
    Gauge,
    Histogram,
    Labels,
    Tally,
    View,
)
from ulak.core import event as kinds
from ulak.core.change import Change, Committed, KeyTaken, LeaseLost, Receipt, SlotTaken, Stale
from ulak.core.job import NewJob
from ulak.engine.engine import Engine
from ulak.engine.telemetry import Verb, run_of
from ulak.store.protocol import LARGEST_BATCH, Added, Claimed, Tick

# Of what the store does: from a flush of a fast disk to a server that is in trouble.
STORE_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
# Of what people and stages do: from a moment to an hour.
LONG_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)
BATCHES: Final = (1, 2, 5, 10, 25, 50, 100, 250, LARGEST_BATCH)

CREATED, REPEAT, OVERLOADED = "created", "repeat", "overloaded"
RECEIPTS: Mapping[type[Receipt], str] = {
    Committed: "committed",
    Stale: "stale",
    LeaseLost: "lease-lost",
    SlotTaken: "slot-taken",
    KeyTaken: "key-taken",
}
SENT, FAILED, DEAD = "sent", "failed", "dead"
WRITTEN, OUTRUN = "written", "outrun"


class Instruments:
    """Counts what one engine tells: an `ulak.engine.telemetry.Telemetry`."""

    def __init__(self, engine: Engine) -> None:
        self.labels = Labels(engine)
        self._loop = registered(engine).metrics
        self.running = Gauge(
            "ulak_stages_running", "Stages that run now.",
            lambda: sum(worker.running for worker in list(engine.kernel.working_here)),
        )  # fmt: skip
        self.submits = Counter(
            "ulak_submits",
            "Jobs offered by submit: stored, answered with the holder of their key, or refused.",
            ("flow", "answer"),
        )
        self.rejected = View(
            "adaptive_pdf_jobs_rejected", "PDF jobs that were refused while intake was stopped.",
            self._read_rejected,
        )  # fmt: skip
        self.submit_seconds = Histogram(
            "ulak_submit_batch_seconds",
            "How long the store took to write new jobs that shared a commit.",
            STORE_SECONDS,
        )
        self.spawns = Counter("ulak_spawns", "Jobs submitted by stages of other jobs.", ("flow",))
        self.claims = Counter("ulak_claimed_jobs", "Jobs taken by workers here.", ("flow",))
        self.claim_seconds = Histogram(
            "ulak_claim_seconds", "How long the store took to answer a claim.", STORE_SECONDS
        )
        self.wait_seconds = Histogram(
            "ulak_wait_seconds", "From when a job was due until it was taken.", LONG_SECONDS,
            ("flow",),
        )  # fmt: skip
        self.lapses = Counter(
            "ulak_lapses", "Jobs taken over here because their worker vanished.", ("flow",)
        )
        self.commit_seconds = Histogram(
            "ulak_commit_seconds", "How long the store took to write a batch of changes.",
            STORE_SECONDS,
        )  # fmt: skip
        self.commit_changes = Histogram(
            "ulak_commit_changes", "How many changes shared a commit.", BATCHES
        )
        self.receipts = Counter(
            "ulak_receipts", "Changes by the store's answer.", ("receipt",),
            known=[(receipt,) for receipt in RECEIPTS.values()],
        )  # fmt: skip
        self.runs = Counter(
            "ulak_runs", "Runs of stages and undos, by the event they ended with.",
            ("flow", "state", "outcome"),
        )  # fmt: skip
        self.run_seconds = Histogram(
            "ulak_run_seconds", "How long runs of stages and undos took.", LONG_SECONDS,
            ("flow", "state"),
        )  # fmt: skip
        self.moves = Counter("ulak_moves", "Jobs that entered a state.", ("flow", "state", "role"))
        self.messages = Counter(
            "ulak_messages", "Outbox messages sent, failed to be tried again, or given up.",
            ("outcome",), known=[(SENT,), (FAILED,), (DEAD,)],
        )  # fmt: skip
        self.ticks = Counter(
            "ulak_schedule_ticks",
            "Dates of schedules seen to here, or by another process that was faster.",
            ("schedule", "answer"),
        )
        self.failures = Counter(
            "ulak_store_failures", "Questions that the store did not answer.", ("verb",),
            known=[(verb,) for verb in get_args(Verb)],
        )  # fmt: skip

    @property
    def tallies(self) -> Iterator[Tally]:
        yield from (tally for tally in vars(self).values() if isinstance(tally, Tally))
        yield from self._loop.tallies

    def read(self) -> list[Family]:
        """Return how everything stands now."""
        return [tally.read() for tally in self.tallies]

    def _read_rejected(self) -> Family:
        value = self.submits.read().series.get((PDF, OVERLOADED), (0.0,))
        return Family("adaptive_pdf_jobs_rejected", "counter", (), {ALONE: value})

    def accepted(self, added: Sequence[Added], seconds: float | None) -> None:
        if seconds is not None:
            self.submit_seconds.observe(ALONE, (seconds,))
        flow = self.labels.flow
        self.submits.add_all(
            Counted((flow(row.flow), CREATED if created else REPEAT) for row, created, _ in added)
        )

    def refused(self, jobs: Sequence[NewJob]) -> None:
        flow = self.labels.flow
        self.submits.add_all(Counted((flow(job.row.flow), OVERLOADED) for job in jobs))

    def claimed(self, claimed: Claimed, seconds: float) -> None:
        self.claim_seconds.observe(ALONE, (seconds,))
        waited: defaultdict[str, list[float]] = defaultdict(list)
        for row, _, _ in claimed.claims:
            waited[row.flow].append(max(0, claimed.now - row.not_before) / 1e6)
            if row.lapsed:
                self.lapses.add((self.labels.flow(row.flow),))
        for flow, values in waited.items():
            labels = (self.labels.flow(flow),)
            self.claims.add(labels, len(values))
            self.wait_seconds.observe(labels, values)

    def committed(
        self, changes: Sequence[Change], receipts: Sequence[Receipt], seconds: float | None
    ) -> None:
        if seconds is not None:
            self.commit_seconds.observe(ALONE, (seconds,))
            self.commit_changes.observe(ALONE, (len(changes),))
        self.receipts.add_all(Counted((RECEIPTS[type(receipt)],) for receipt in receipts))
        written = [c for c, r in zip(changes, receipts, strict=True) if type(r) is Committed]
        self._count_runs(written)
        self._count_moves(written)

    # Gathered under their own names first: what is the same for a whole batch is labelled once.

    def _count_runs(self, changes: Sequence[Change]) -> None:
        took: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        for change in changes:
            ran = run_of(change)
            if ran is not None:
                state, outcome, seconds = ran
                took[change.row.flow, state, outcome].append(seconds)
        for (flow, state, outcome), values in took.items():
            place = self.labels.place(flow, state)
            self.runs.add((*place, outcome if outcome in kinds.KINDS else OTHER), len(values))
            self.run_seconds.observe(place, values)

    def _count_moves(self, changes: Sequence[Change]) -> None:
        moved = Counted(
            (c.row.flow, c.row.state, c.row.role) for c in changes if c.moved_from is not None
        )
        for (flow, state, role), n in moved.items():
            self.moves.add((*self.labels.place(flow, state), role), n)
        spawned = Counted(job.row.flow for change in changes for job in change.spawns)
        for flow, n in spawned.items():
            self.spawns.add((self.labels.flow(flow),), n)

    def published(self, sent: int, failed: int, dead: int) -> None:
        self.messages.add_all({(SENT,): sent, (FAILED,): failed, (DEAD,): dead})

    def ticked(self, ticks: Sequence[Tick], written: Sequence[bool]) -> None:
        schedule = self.labels.schedule
        self.ticks.add_all(
            Counted(
                (schedule(tick.row.name), WRITTEN if is_ours else OUTRUN)
                for tick, is_ours in zip(ticks, written, strict=True)
            )
        )

    def failed(self, verb: Verb) -> None:
        self.failures.add((verb,))
