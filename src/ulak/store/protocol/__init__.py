"""What every store promises. A store compares, swaps and reads; the rules are in `ulak.core`.

Verbs are synchronous and batched. Every verb is one transaction: it happens whole or not at all.
Each role has a file; `Store` is all of them together, and who needs one role asks for that.
`ulak.testing.conformance` holds a store to each sentence here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ulak.clock import Clock
from ulak.store.protocol.control import (
    NO_RATES,
    AuditRow,
    BucketRow,
    ControlStore,
    LimitRow,
    PauseRow,
    RateRow,
    SlotRow,
    WeightRow,
)
from ulak.store.protocol.credentials import CredentialRow, CredentialStore
from ulak.store.protocol.features import (
    LARGEST_BATCH,
    LARGEST_BATCH_BYTES,
    LARGEST_CLAIM_BYTES,
    Features,
)
from ulak.store.protocol.filters import JobFilter
from ulak.store.protocol.jobs import Added, CountRow, JobStore, Progress
from ulak.store.protocol.leases import (
    Claim,
    Claimed,
    ClaimRequest,
    LeaseStore,
    Renewal,
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
from ulak.store.protocol.scans import DedupRow, ProofRow, ScanStore
from ulak.store.protocol.schedules import ScheduleRow, ScheduleStore, Tick, TickRow
from ulak.store.protocol.upkeep import UpkeepStore
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


class Store(
    JobStore,
    LeaseStore,
    ControlStore,
    UpkeepStore,
    ScheduleStore,
    CredentialStore,
    OutboxStore,
    ScanStore,
    RecordStore,
    Protocol,
):
    """The truth about every job: all roles together."""

    features: Features
    clock: Clock

    def open(self) -> None:
        """Be ready for use. Creates the schema when there is none.

        Raises:
            StoreError: the schema is of another version, with the command that mends it.
        """

    def close(self) -> None:
        """Give back connections and files; closing twice is nothing."""

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
