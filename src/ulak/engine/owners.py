"""Who owns jobs, in flows that keep it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ulak.clock import to_datetime, to_instant
from ulak.core.keys import storable_key
from ulak.errors import BadInput
from ulak.ids import from_text, to_text

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel
    from ulak.store.protocol import Store


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
        """Return who owns a job, in the order in which they became owners.

        Raises:
            JobNotFound: there is none.
        """
        row = self._kernel.get_row(job_id)
        return self._kernel.store.find_owners(row.id)

    def jobs(self, owner: str, *, before: Owned | None = None, limit: int = 100) -> list[Owned]:
        """Return the jobs of an owner, the last first by when they became one; `before` is the last
        one of the page before. `JobFilter(owner=)` lists them by id, with other conditions."""
        place = None if before is None else (to_instant(before.since), from_text(before.job_id))
        found = self._kernel.open().store.find_owned(owner, before=place, limit=limit)
        return [Owned(to_datetime(at), to_text(job_id)) for at, job_id in found]

    def add(self, job_id: str, owner: str, *, connection: Any = None) -> None:
        """Let one more own a job, as a repeat of its submit does; twice is nothing.

        Args:
            job_id: The job, in whatever state it is.
            owner: Their name.
            connection: Your own open transaction, to write it in.

        Raises:
            BadInput: the flow keeps no owners, or this is no name.
            JobNotFound: there is no such job.
        """
        storable_key(owner, "owner=")

        def write(store: Store) -> None:
            row = self._kernel.get_row(job_id, store)
            flow = self._kernel.find_flow(row.flow, row.flow_version)
            if flow is not None and not flow.owners:
                raise BadInput(f"{row.flow} keeps no owners; declare it with Flow(owners=True)")
            store.add_owner(row.id, owner)

        self._kernel.acting_on(connection, "owners.add", write)
