"""What a store can do, and what every verb of it keeps to."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

LARGEST_BATCH = 500
LARGEST_BATCH_BYTES = 4 * 1024 * 1024
LARGEST_CLAIM_BYTES = 16 * 1024 * 1024
"""A claim takes jobs until their payloads have so many bytes together; so it takes at least one."""


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
    """Stages may have `transaction=True`: it is a `stage.StageStore`."""
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
    flow_control: bool = False
    """Limits with keys, rates, pauses and fair flows are kept to."""
    durability: str = ""
    """In a sentence, what a power cut may cost."""
