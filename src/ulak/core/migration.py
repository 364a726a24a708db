"""How a job goes on under another version of its flow: by a map that an operator has written.

The map says for each state where its jobs go. A migrated job is the same job in other words: its
results, dates, attempts, owed undos and dedup key stay. What the new state decides is made anew:
the lane, the slot or the tokens that a run needs, and the signal that it awaits.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.acts import refused
from ulak.core.change import Change, Draft, frees_key
from ulak.core.flow import Flow, names
from ulak.core.job import OF_UNDO, JobRow, Result, held_slot, lane_for
from ulak.core.lifecycle import BUSY, CLAIMABLE, FINAL, HELD, READY, UNDOING, WAITING
from ulak.core.table import Place, find_missing, knows, needs_of
from ulak.errors import BadInput

Standing = Collection[tuple[str, str]]
"""The states in which jobs of a version stand, each with the role that it has in their rows."""


@dataclass(frozen=True, slots=True)
class Migration:
    """Which version of a flow is left, and where the jobs of each of its states go."""

    target: Flow[Any]
    _: KW_ONLY
    from_version: int
    states: Mapping[str, str]
    """For each state that is left, the state of the target that is entered."""
    source: Flow[Any] | None = None
    """The flow in the version that is left, if this program declares it."""

    def concerns(self, state: str, role: str) -> bool:
        """Tell whether a job of the old version in this state may be moved. Within one version only
        what this program lacks may be: everything else has ways of its own, and a second run of the
        same map must find nothing to do."""
        is_same = self.from_version == self.target.version
        return not (is_same and knows(self.target.table, state, role))


def with_same_states(migration: Migration, standing: Standing) -> dict[str, str]:
    """Return the map with every unfinished state that the target has in the same role."""
    same = {
        state: state
        for state, role in standing
        if role not in FINAL
        and knows(migration.target.table, state, role)
        and migration.concerns(state, role)
    }
    return same | dict(migration.states)


def check(migration: Migration, standing: Standing) -> None:
    """Raise `BadInput` for a map that cannot be followed, before anything is changed."""
    target, places = migration.target, migration.target.table.places
    which = f"{target.name} version {target.version}"
    if unknown := [new for new in migration.states.values() if new not in places]:
        raise BadInput(f"{which} has no state {names(unknown)}; it has {names(list(places))}")
    source = migration.source
    known = {} if source is None or source is target else source.table.places
    if known and (unknown := [old for old in migration.states if old not in known]):
        raise BadInput(
            f"{target.name} version {migration.from_version} has no state {names(unknown)}; "
            f"it has {names(list(known))}"
        )
    if source is not None and target.proofs and not source.proofs:
        raise BadInput(
            f"{which} has proofs, and jobs of version {source.version} began without; "
            "let them end under their own version"
        )
    concerned = sorted(job for job in standing if migration.concerns(*job))
    served = {state for state, role in standing} - {state for state, role in concerned}
    if own := sorted(served & migration.states.keys()):
        raise BadInput(
            f"{which} has {names(own)} itself, and its jobs go on there; map only what it lacks"
        )
    for state, role in concerned:
        if state in migration.states:
            _must_fit(migration, state, role)
    missing = sorted(
        {state for state, role in concerned if role not in FINAL} - migration.states.keys()
    )
    # A version that this program declares is served by it: the rest of its jobs may stay.
    if missing and (source is None or source is target):
        raise BadInput(
            f"jobs of {target.name} version {migration.from_version} stand in {names(missing)}, "
            "which the map leaves out; say where they go with --map OLD=NEW, or with --same where "
            f"{which} has the same state in the same role"
        )


def migrated(
    migration: Migration,
    job: JobRow,
    now: Instant,
    *,
    actor: str,
    note: str,
    commit_id: bytes,
    keys: str | None,
    results: Iterable[Result] = (),
) -> Change:
    """Return the change that moves a job of the old version, guarded by the job's version. Nobody
    has leased the job; `keys` are what `keys_of` of the target makes of its payload. The `results`
    of a mapped state are written once more, under the name of the new one. `TransitionNotAllowed`:
    the job owes or names what the target lacks."""
    flow, table = migration.target, migration.target.table
    place = table.places[migration.states[job.state]]
    _must_fit_job(migration, job, place)
    # `arrive` asks the table for the state that is left, which is none of this table's.
    fixed = job._replace(
        flow_version=flow.version, keys=keys, stood=0, started=_started(migration, job, place),
        undo_to=_renamed(migration, job.undo_to),
    )  # fmt: skip
    draft = Draft(flow, job, now, commit_id=commit_id, actor=actor)
    draft.row = fixed
    if job.role == UNDOING:
        _go_on_undoing(draft, place, _renamed(migration, job.resume))
    else:
        draft.arrive(place)
        _keep(draft, place, _renamed(migration, job.resume))
    _must_have_all(migration, job, draft.row)
    draft.results = tuple(_under_new_names(migration, results))
    versions = {"from_version": job.flow_version, "to_version": flow.version}
    draft.note(
        kinds.MIGRATED, from_state=job.state, message=note,
        details=json.dumps(versions, separators=(",", ":")),
    )  # fmt: skip
    # The end of a job that has ended is not new: its key is freed if the target says so, and to
    # free one twice is nothing.
    ended = job.role in FINAL and job.dedup_key is not None
    return draft.change()._replace(frees_key=ended and frees_key(flow, draft.row))


def _must_fit(migration: Migration, state: str, role: str) -> None:
    place = migration.target.table.places[migration.states[state]]
    cure = _misfit(migration.target, role, place)
    if cure is not None:
        raise BadInput(
            f'{migration.target.name}: jobs in "{state}" are {role}, and "{place.state}" is '
            f"{place.role}; {cure}"
        )


def _misfit(flow: Flow[Any], role: str, place: Place) -> str | None:
    """Return what would work when jobs of a role cannot go to a place, None when they can."""
    if role in FINAL:
        return None if place.role == role else f"what has ended goes to a state that is {role}"
    if role == UNDOING:
        undoing = flow.lifecycle.undoing
        can_undo = place.state == undoing if undoing else not (place.is_final or place.role == HELD)
        return None if can_undo else "what is being undone goes to a state in which undos run"
    if role == HELD:
        is_held = place.role == HELD
        return None if is_held else "decide or release those jobs, or map to a state that is held"
    if place.role == WAITING and role != WAITING and not (place.awaits or place.deadline_us):
        return "nothing would ever end that wait; map to a state with a signal, a date or a stage"
    if place.role in (READY, WAITING) or place.gate is not None:
        return None
    if place.role == BUSY:
        return None if role == BUSY else "only a claim enters a busy state; map to the one before"
    return "map to a state where the work goes on, or end those jobs with `ulak jobs cancel`"


def _must_fit_job(migration: Migration, job: JobRow, place: Place) -> None:
    cure = _misfit(migration.target, job.role, place)
    # A fault has a code, a question at a gate has none.
    if cure is None and job.role == HELD and (job.code is None) is (place.gate is None):
        what = "asks at a gate" if job.code is None else f"is held by a fault ({job.code})"
        cure = f'it {what}, which "{place.state}" is not for'
    if cure is not None:
        raise refused(job, cure)


def _must_have_all(migration: Migration, job: JobRow, row: JobRow) -> None:
    """Refuse a job that would owe an undo, or come back to a state, that the target lacks."""
    missing = find_missing(migration.target.table, row)
    if missing is None and row.resume is not None:
        missing = None if row.resume in migration.target.table.places else row.resume
    slot = held_slot(row.slot, leased=False)
    if slot is not None and slot != held_slot(job.slot, leased=False):
        stage = migration.target.table.places[row.state].stage
        before = row.state if stage is None else stage.state
        raise refused(
            job,
            f'it has no slot of "{row.state}", which is limited; map "{job.state}" to "{before}"',
        )
    if missing is not None:
        raise refused(
            job,
            f'it owes or will come back to "{missing}", which version {migration.target.version} '
            f"has not; say with --map {missing}=NEW what stands for it",
        )


def _keep(draft: Draft, place: Place, resume: str | None) -> None:
    """Give back to the row what a new name of its state does not change."""
    job, row = draft.origin, draft.row
    if place.role != job.role and not {place.role, job.role} <= CLAIMABLE:
        return
    is_dated = place.deadline_us is not None or (place.role == WAITING and place.awaits is None)
    deadline = job.deadline_at if is_dated and job.deadline_at is not None else row.deadline_at
    is_owed = job.role == HELD and job.undo_to is not None
    dates = [deadline, None if place.is_final or is_owed else job.expires_at]
    draft.row = row._replace(
        attempt=job.attempt, lapses=job.lapses, code=job.code, permanent=job.permanent,
        resume=resume, not_before=job.not_before, deadline_at=deadline,
        wake_at=min((date for date in dates if date is not None), default=None),
        stood=job.stood, lapsed=job.lapsed,
        changed_at=job.changed_at if place.is_final else row.changed_at,
    )  # fmt: skip


def _go_on_undoing(draft: Draft, place: Place, resume: str | None) -> None:
    row, owed = draft.row, draft.row.started.split()
    slot = held_slot(needs_of(place, row.tenant, row.keys).slot, leased=False)
    # An undo that the target lacks has no lane; the job is refused for it right after.
    lane = draft.table.undo_lanes.get(owed[-1], "") if owed else ""
    draft.row = row._replace(
        state=place.state, resume=resume, lane=lane_for(lane, row.tenant), changed_at=draft.now,
        slot=None if slot is None else OF_UNDO + slot,
    )  # fmt: skip


def _renamed(migration: Migration, state: str | None) -> str | None:
    return None if state is None else migration.states.get(state, state)


def _stage(migration: Migration, name: str) -> str:
    """Return the stage, gate or wait of the target that stands for one of the old version."""
    new = migration.states.get(name, name)
    place = migration.target.table.places.get(new)
    return new if place is None or place.stage is None else place.stage.state


def _started(migration: Migration, job: JobRow, place: Place) -> str:
    """Return the stages of the target whose undos are owed."""
    owed = job.started.split()
    source = None if migration.source is None else migration.source.table.places.get(job.state)
    is_left = job.stood and place.stage is None and not place.is_final
    if is_left and source is not None and source.has_undo and source.stage is not None:
        # Its stage has begun, and the place that it goes to has no stage that would remember it.
        owed = [*(name for name in owed if name != source.stage.state), source.stage.state]
    return " ".join(dict.fromkeys(_stage(migration, name) for name in owed))


def _under_new_names(migration: Migration, results: Iterable[Result]) -> Iterable[Result]:
    for result in results:
        name = _stage(migration, result.stage)
        if result.stage in migration.states and name != result.stage:
            yield result._replace(stage=name)
