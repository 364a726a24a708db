"""What every store promises. A store compares, swaps and reads; the rules are in `ulak.core`.

Verbs are synchronous and batched. Every verb is one transaction: it happens whole or not at all.
Related roles share a file; `Store` is all of them together, and who needs one role asks for that.
`ulak.testing.conformance` holds a store to each sentence here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from ulak.clock import Clock
from ulak.store.credentials import CredentialRow, CredentialStore
from ulak.store.protocol.control import (
    NO_RATES,
    AuditRow,
    BucketRow,
    ControlStore,
    LimitRow,
    PauseRow,
    RateRow,
    ScheduleRow,
    ScheduleStore,
    SlotRow,
    Tick,
    TickRow,
    WeightRow,
)
from ulak.store.protocol.filters import JobFilter
from ulak.store.protocol.jobs import (
    LARGEST_BATCH,
    LARGEST_BATCH_BYTES,
    LARGEST_CLAIM_BYTES,
    Added,
    Claim,
    Claimed,
    ClaimRequest,
    CountRow,
    DedupRow,
    JobStore,
    LeaseStore,
    Progress,
    ProofRow,
    Renewal,
    ScanStore,
    UpkeepStore,
    Want,
    WorkerRow,
)
from ulak.store.protocol.outbox import (
    DeliveryCount,
    DeliveryFilter,
    EventSource,
    Followed,
    HandlerRow,
    OutboxRow,
    OutboxStore,
    Settled,
)
from ulak.store.records import RecordStore

__all__ = [
    "LARGEST_BATCH",
    "LARGEST_BATCH_BYTES",
    "LARGEST_CLAIM_BYTES",
    "NO_RATES",
    "Added",
    "AuditRow",
    "BucketRow",
    "Claim",
    "ClaimRequest",
    "Claimed",
    "ControlStore",
    "CountRow",
    "CredentialRow",
    "CredentialStore",
    "DedupRow",
    "DeliveryCount",
    "DeliveryFilter",
    "EventSource",
    "Features",
    "Followed",
    "HandlerRow",
    "JobFilter",
    "JobStore",
    "LeaseStore",
    "LimitRow",
    "OutboxRow",
    "OutboxStore",
    "PauseRow",
    "Progress",
    "ProofRow",
    "RateRow",
    "RecordKeeper",
    "Renewal",
    "ScanStore",
    "ScheduleRow",
    "ScheduleStore",
    "Settled",
    "SlotRow",
    "Store",
    "Tick",
    "TickRow",
    "UpkeepStore",
    "Want",
    "WeightRow",
    "WorkerRow",
]


@dataclass(frozen=True, slots=True)
class Features:
    """What a store can do; the conformance suite and the engine read these, never its name."""

    _: KW_ONLY
    name: str
    durable: bool
    """What was committed survives the death of the process."""
    shared: bool
    """Several processes may use it at once."""
    caller_transactions: bool = False
    """`submit(connection=...)` writes in the caller's own transaction: it is a `caller.Guest`."""
    stage_transactions: bool = False
    """Stages may have `transaction=True`: it is a `transaction.StageStore`."""
    open_transactions: bool = False
    """Rows of a program, jobs and idempotency records may be one commit: it is a
    `transaction.TransactionStore`."""
    on_loop: bool = False
    """Such a transaction may begin and end on an event loop: it is a
    `transaction.LoopTransaction`."""
    one_writer: bool = False
    """While such a transaction is open, nobody else writes: it is a
    `transaction.PartedTransaction`."""
    dialect: str = ""
    """Which SQL the connections of its transactions speak: `sqlite`, `postgresql`, or none."""
    removes_expired: bool = False
    """Idempotency records go by themselves when they have expired: `clean_records` finds none."""
    flow_control: bool = False
    """Limits with keys, rates, pauses and fair flows are kept to."""
    batch: int | None = None
    """So many jobs are best claimed, or committed, at once, so that others are served in between.
    None: as many as there are."""
    durability: str = ""
    """In a sentence, what a power cut may cost."""


class RecordKeeper(RecordStore, Protocol):
    """A place for idempotency records, with or without jobs beside them."""

    features: Features
    clock: Clock

    def open(self) -> None:
        """Be ready for use; raises as `Store.open` does."""

    def close(self) -> None:
        """Give back connections and files; closing twice is nothing."""


class Store(
    JobStore,
    LeaseStore,
    ControlStore,
    UpkeepStore,
    ScheduleStore,
    CredentialStore,
    OutboxStore,
    ScanStore,
    RecordKeeper,
    Protocol,
):
    """The truth about every job: all roles together."""

    def open(self) -> None:
        """Be ready for use. Creates the schema when there is none.

        Raises:
            StoreError: the schema is of another version, with the command that mends it.
        """

    def migrate(self) -> tuple[int, int]:
        """Bring the schema to this release; answer its version before and after."""

    def changed_elsewhere(self) -> bool:
        """Tell cheaply whether another process has committed since the last call.

        A store that cannot tell others' commits from its own may say so once too often.
        """

    def on_commit(self, ring: Callable[[], None]) -> None:
        """Call `ring` after each commit of this process that may have made a job due."""

    def on_move(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` after each commit, of any process, that may have moved jobs; return the undo.

        `ring` is quick and may be called from any thread, too often rather than too seldom. A call
        that is lost costs a little time, since waits look by themselves too.
        """
