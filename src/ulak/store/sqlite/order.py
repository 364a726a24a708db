"""The order of writes: jobs by id, keys, slots, pauses; the heads of chains come last of all.

Two that write the same rows in one order can wait for each other, never in a circle. In a file
there is one writer at a time; every store keeps the order all the same, so that what one of them
answers to a batch does not depend on how its caller happened to arrange it. (Jobs that have most
columns in common are one statement: they are by id within it.)

A batch is decided change by change, against what is stored and what the batch has done to it so
far, and what it does to other tables waits here until all its jobs are written.
"""

from __future__ import annotations

from collections.abc import Iterator

from ulak.clock import Instant
from ulak.core.job import JobRow, NewJob, is_of_state
from ulak.store.sqlite import control, keys
from ulak.store.sqlite.writer import Transaction

_FREES, _TAKES = False, True


class Rest:
    """What a batch writes after the jobs that it moves: new jobs, keys, slots and pauses."""

    def __init__(self, t: Transaction) -> None:
        self._t = t
        self._new: dict[bytes, NewJob] = {}
        self._keys: dict[keys.Key, list[tuple[bool, bytes, Instant | None]]] = {}
        self._slots: dict[str, list[tuple[bool, bytes, bool]]] = {}
        """Per limit the steps: whether a slot is taken, for which job, and whether for a state."""
        self._places: dict[str, tuple[int, int]] = {}
        """Per limit, how many places are free after so many of its steps."""
        self._pauses: list[tuple[str, Instant, str]] = []
        self.owned: list[tuple[bytes, str]] = []
        """Jobs and who owns them from now on."""

    def add(self, job: NewJob) -> None:
        """Store a job, with its key, which nobody may hold."""
        self._new[job.row.id] = job
        self.take_key(job.row, job.key_expires_at)
        self.own(job.row.id, job.owner)

    def own(self, job_id: bytes, owner: str) -> None:
        """Add an owner to a job, if somebody is named."""
        if owner:
            self.owned.append((job_id, owner))

    def find_new(self, job_id: bytes) -> JobRow | None:
        """Return a job that will be stored."""
        job = self._new.get(job_id)
        return None if job is None else job.row

    def new_jobs(self) -> list[NewJob]:
        """Return the jobs that will be stored, by id."""
        return [self._new[job_id] for job_id in sorted(self._new)]

    def holder_of(self, row: JobRow) -> bytes | None:
        """Return the job that will hold this job's dedup key."""
        key = keys.key_of(row)
        if key is None:
            return None
        held = keys.holder_of(self._t, key)
        for takes, job_id, _ in self._keys.get(key, ()):
            if takes:
                held = job_id
            elif held == job_id:
                held = None
        return held

    def free_key(self, row: JobRow) -> None:
        """Give the key back, unless another job has taken it over."""
        self._keep_key(row, _FREES, None)

    def take_key(self, row: JobRow, expires_at: Instant | None) -> None:
        """Take a key that nobody holds, or that has expired."""
        self._keep_key(row, _TAKES, expires_at)

    def _keep_key(self, row: JobRow, takes: bool, expires_at: Instant | None) -> None:
        key = keys.key_of(row)
        if key is not None:
            self._keys.setdefault(key, []).append((takes, row.id, expires_at))

    def free_places(self, limit: str) -> int:
        """Return how many more jobs may run under this limit."""
        steps = self._slots.get(limit, [])
        if limit not in self._places:
            self._places[limit] = keys.free_places(self._t, limit), 0
        places, seen = self._places[limit]
        for takes, job_id, _ in steps[seen:]:
            places += -1 if takes else keys.holds_slot(self._t, limit, job_id)
        self._places[limit] = places, len(steps)
        return places

    def free_slot(self, limit: str, job_id: bytes) -> None:
        """Free the slot that this job holds."""
        self._slots.setdefault(limit, []).append((_FREES, job_id, False))

    def take_slot(self, limit: str, row: JobRow) -> None:
        """Take a slot of which `free_places` knows."""
        self._slots.setdefault(limit, []).append((_TAKES, row.id, is_of_state(row.slot)))

    def has_paused_key(self, row: JobRow) -> bool:
        """Tell whether a key by which this job would run is paused."""
        return control.paused_key(self._t, row.slot, row.rate) is not None

    def pause(self, key: str, until: Instant, actor: str) -> None:
        """Pause a key until then."""
        self._pauses.append((key, until, actor))

    def write(self) -> int:
        """Write keys, slots and pauses; answer how many jobs were unparked."""
        for key in sorted(self._keys):
            for takes, job_id, expires_at in self._keys[key]:
                if takes:
                    keys.take_key(self._t, key, job_id, expires_at)
                else:
                    keys.free_key(self._t, key, job_id)
        unparked = sum(self._write_slots())
        for name, until, actor in sorted(self._pauses):
            control.pause_key(self._t, name, until, actor)
        return unparked

    def _write_slots(self) -> Iterator[int]:
        for limit in sorted(self._slots):
            freed = 0
            steps = self._slots[limit]
            if any(takes for takes, _, _ in steps):
                keys.open_slots(self._t, limit)
            for takes, job_id, of_state in steps:
                if takes:
                    keys.take_slot(self._t, limit, job_id, of_state=of_state)
                else:
                    freed += keys.free_slot(self._t, limit, job_id)
            # Last, so that nobody is let in to a place that this very batch has taken.
            if freed:
                places = min(freed, keys.free_places(self._t, limit))
                yield keys.pass_on(self._t, limit, places)
