"""What every store checks and writes alike: batches, lines of a trail, chains of proofs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final

from ulak.clock import Instant
from ulak.core.change import Change, LeaseLost, Receipt, Stale
from ulak.core.job import Event, JobRow
from ulak.errors import WriteRefused
from ulak.ids import to_text
from ulak.store.protocol import LARGEST_BATCH, LARGEST_CLAIM_BYTES, Claim, Want

Key = tuple[str, str, str]
"""Tenant, flow and dedup key."""


def key_of(row: JobRow) -> Key | None:
    return None if row.dedup_key is None else (row.tenant, row.flow, row.dedup_key)


def must_be_a_batch(changes: Sequence[Change]) -> None:
    """Refuse more changes than one commit may hold, and two of one job, by `WriteRefused`."""
    if len(changes) > LARGEST_BATCH:
        raise WriteRefused(f"{len(changes)} changes in one commit; {LARGEST_BATCH} are allowed")
    ids = {change.row[0] for change in changes}
    if len(ids) < len(changes):
        for change in changes:
            if change.row.id not in ids:
                raise WriteRefused(
                    f"job {to_text(change.row.id)} has two changes in one commit; one is allowed"
                )
            ids.discard(change.row.id)


def is_full(wants: Sequence[Want], claims: Sequence[Claim]) -> bool:
    """Tell whether a claim has taken all that it may: there may be more to take at once."""
    if claims and len(claims) >= sum(max(want.places, 0) for want in wants):
        return True
    return sum(len(claim.payload.data) for claim in claims) >= LARGEST_CLAIM_BYTES


def follow_each_other(change: Change, before: int) -> bool:
    """Tell whether the events of a change go on from this number of the trail, without a gap."""
    events = change.events
    if len(events) == 1:
        return events[0].seq == before + 1
    return all(event.seq == n for n, event in enumerate(events, before + 1))


def refusal_of(change: Change, stored: JobRow | None) -> Receipt | None:
    """Return the refusal when somebody came first. No guard lets a change of an absent job pass."""
    if change.token is not None:
        return None if stored is not None and stored.token == change.token else LeaseLost()
    if stored is None or stored.version != change.version or stored.leased_by is not None:
        return Stale(stored)
    return None


NO_COMMIT: Final = b""

SUSPECT_LAPSES: Final = 2
"""A job that was lost so often may be what its workers died of."""
NO_SUSPECTS: Final = SUSPECT_LAPSES - 1


def own_event(
    row: JobRow, kind: str, origin: str, actor: str, worker: str | None, now: Instant
) -> Event:
    """Write the line of a lease that was taken into a busy state, or lost."""
    return Event(
        row.id, row.seq, kind, origin, row.state, actor, None, None, None, row.round,
        row.attempt + 1, worker, row.token, row.leased_at, now, 0, NO_COMMIT,
    )  # fmt: skip


FIRST_HASH = bytes(32)

Link = tuple[str, bytes, int, bytes]
"""What will be a link of a chain: tenant, job, number of the event, body."""


def linked(
    number: int, link: bytes, links: Iterable[Link]
) -> Iterator[tuple[int, bytes, int, bytes, bytes]]:
    """Go on from a chain's last number and hash: number, job, seq, body and hash of each link."""
    for _, job_id, seq, body in links:
        number, link = number + 1, sha256(link + body).digest()
        yield number, job_id, seq, body, link
