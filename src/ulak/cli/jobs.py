"""`ulak jobs`: read jobs and act on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any

import typer
from rich.text import Text

from ulak.cli.spans import TimeOption
from ulak.clock import rfc3339, to_datetime
from ulak.core.backlog import Backlog
from ulak.core.lifecycle import CLAIMABLE, ROLES
from ulak.engine.engine import Engine
from ulak.engine.view import Job, TrailEvent, backlog_document, event_document, job_document
from ulak.errors import TransitionNotAllowed
from ulak.ids import from_text
from ulak.kit.commands.output import (
    JsonOption,
    note,
    pretty,
    print_facts,
    print_json,
    print_table,
    role_text,
    safe,
    when,
)
from ulak.kit.commands.person import ActorOption, NoteOption
from ulak.kit.commands.target import AppOption, reading
from ulak.store.protocol import JobFilter

group = typer.Typer(no_args_is_help=True, help="Read jobs and act on them.")

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
KINDS = ("due", "delayed", "parked", "leased", "held")
RoleName = Enum("RoleName", {role: role for role in ROLES}, type=str)  # type: ignore[misc]


@group.command("list")
def list_jobs(
    app: AppOption = None,
    flow: Annotated[str | None, typer.Option(help="Only of this flow.")] = None,
    state: Annotated[str | None, typer.Option(help="Only in this state.")] = None,
    role: Annotated[RoleName | None, typer.Option(help="Only with this role.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    code: Annotated[str | None, typer.Option(help="Only held or failed with this code.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only of this queue.")] = None,
    submitted_since: TimeOption = None,
    submitted_before: TimeOption = None,
    changed_since: TimeOption = None,
    changed_before: TimeOption = None,
    id_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only with an id that begins so.")
    ] = None,
    dedup_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only with this dedup key, held or not.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only owned by this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    after: Annotated[
        str | None, typer.Option(metavar="JOB", help="Go on below this job, the last one shown.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    where = JobFilter(
        flow=flow, state=state, role=None if role is None else role.value, tenant=tenant,
        code=code, queue=queue, id_prefix=id_prefix, dedup_key=dedup_key, owner=owner,
        submitted_since=submitted_since, submitted_before=submitted_before,
        changed_since=changed_since, changed_before=changed_before,
    )  # fmt: skip
    with reading(app) as engine:
        # One more than asked tells whether there is another page.
        found = engine.jobs(where, after=after, limit=limit + 1)
    page = found[:limit]
    following = page[-1].id if len(found) > len(page) else None
    if as_json:
        documents = [job_document(job) for job in page]
        print_json({"jobs": documents, "next": following, "unserved": where.unserved})
        return
    if where.unserved is not None:
        note(where.unserved)
    if not page:
        note("no jobs")
        return
    _print_jobs(page)
    if following is not None:
        note(f"there are more: --after {following}")


def _print_jobs(jobs: list[Job]) -> None:
    has_tenants = any(job.tenant for job in jobs)
    rows = []
    for job in jobs:
        row: list[str | Text] = [
            job.id, job.flow, role_text(job.role, job.state), when(job.changed_at),
            role_text(job.role, ": ".join(part for part in (_standing(job), job.code) if part)),
        ]  # fmt: skip
        rows.append([*row, job.tenant] if has_tenants else row)
    columns = ["id", "flow", "state", "changed", "role"] + (["tenant"] if has_tenants else [])
    print_table(columns, rows, keep=("id", "changed"))


def _standing(job: Job) -> str:
    """Return the role, and of a claimable job what keeps a worker from it or has it."""
    if job.role not in CLAIMABLE:
        return job.role
    if job.leased_by is not None:
        return f"{job.role}, leased"
    if job.parked_on is not None:
        return f"{job.role}, parked"
    return f"{job.role}, {'delayed' if job.not_before > datetime.now(UTC) else 'due'}"


@group.command("counts")
def counts(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Count the jobs that are due, delayed, parked, leased and held, by flow and queue."""
    with reading(app) as engine:
        rows = engine.inspect.backlog()
    if as_json:
        print_json({"backlog": [backlog_document(row) for row in rows]})
        return
    if not rows:
        note("no jobs wait or run, and none has ended lately")
        return

    def number(row: Backlog, kind: str) -> str:
        return f"{getattr(row, kind):,}{'+' if kind in row.at_least else ''}"

    print_table(
        ("flow", "queue", *KINDS, "oldest due", "ended/s"),
        [
            (
                row.flow, row.queue, *(number(row, kind) for kind in KINDS),
                "" if row.oldest_due is None else when(row.oldest_due),
                f"{row.ended_per_second:.2f}",
            )
            for row in rows
        ],
        keep=("flow", *KINDS),
    )  # fmt: skip
    if any(row.at_least for row in rows):
        note("+ means that there are more")


@group.command("show")
def show(job: JobArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show one job: how it stands, its payload, what it left."""
    with reading(app) as engine:
        found = engine.get(job)
        document = {**job_document(found), **_more(engine, found)}
    if as_json:
        print_json(document)
        return
    _print_job(found, document)


def _more(engine: Engine, job: Job) -> dict[str, Any]:
    """Return what stands in other tables than the job's own."""
    store, job_id = engine.store, from_text(job.id)
    flow = engine.kernel.flows_by_version().get((job.flow, job.version))
    place = None if flow is None else flow.table.places.get(job.state)
    progress = store.find_progress(job_id)
    more: dict[str, Any] = {
        "declared": flow is not None,
        "choices": list(place.gate.choices) if place is not None and place.gate else [],
        # Which fields are secret is said by the flow; without it nothing can be shown.
        "payload": engine.inspect.payload(job.id) if flow is not None else None,
        "progress": None,
        "requests": [
            {
                "kind": r.kind,
                "name": r.name,
                "actor": r.actor,
                "note": r.note or "",
                "at": rfc3339(to_datetime(r.at)),
            }
            for r in store.pending_requests(job_id)
        ],
        "result": None,
    }
    if progress is not None and not job.is_final:
        more["progress"] = {
            "fraction": progress.fraction,
            "note": progress.note,
            "at": rfc3339(to_datetime(progress.at)),
        }
    with suppress(TransitionNotAllowed):  # a flow that this program does not declare
        more["result"] = engine.inspect.result(job.id)
    return more


def _print_job(job: Job, document: dict[str, Any]) -> None:
    facts: list[tuple[str, str | Text]] = [
        ("job", job.id),
        ("flow", f"{job.flow} version {job.version}"),
        ("state", role_text(job.role, f"{job.state} ({job.role})")),
    ]
    facts += [(name, value) for name, value in _exceptional(job) if value]
    facts += [
        ("submitted", f"{when(job.created_at)} by {job.submitter or 'nobody in particular'}"),
        ("changed", when(job.changed_at)),
        ("round", f"{job.round}; failed attempts: {job.attempt}, lapses: {job.lapses}"),
    ]
    if document["choices"]:
        facts.append(("decide", " or ".join(document["choices"])))
    if document["declared"]:
        facts.append(("payload", pretty(document["payload"])))
    else:
        facts.append(("payload", "not shown: this program does not declare this version"))
    if document["progress"] is not None:
        said = document["progress"]
        facts.append(("progress", f"{said['fraction']:.0%} {said['note'] or ''} at {said['at']}"))
    facts += [
        ("asked", f"{r['kind']} {r['name']} by {r['actor']} at {r['at']} {r['note']}".strip())
        for r in document["requests"]
    ]
    if document["result"] is not None:
        facts.append(("result", pretty(document["result"])))
    print_facts(facts)


def _exceptional(job: Job) -> list[tuple[str, str]]:
    """Return what most jobs do not have."""
    delayed = job.not_before > job.changed_at and not job.is_final
    return [
        ("code", job.code or ""),
        ("tenant", job.tenant),
        ("leased by", job.leased_by or ""),
        ("parked on", job.parked_on or ""),
        ("not before", when(job.not_before) if delayed else ""),
        ("expires", when(job.expires_at) if job.expires_at else ""),
        ("cancel", "requested" if job.cancel_requested else ""),
    ]


@group.command("trail")
def trail(
    job: JobArgument,
    app: AppOption = None,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Show what happened to a job, in order."""
    with reading(app) as engine:
        events = engine.inspect.trail(job, after=after, limit=limit)
    if as_json:
        print_json({"job": job, "events": [event_document(event) for event in events]})
        return
    # A worker's id is long and the same on most lines; it is told once, below.
    workers = dict.fromkeys(e.worker for e in events if e.worker is not None)
    short = {worker: f"worker {n}" for n, worker in enumerate(workers, start=1)}
    print_table(
        ("seq", "at", "kind", "state", "actor", "what"),
        [
            (str(e.seq), when(e.at), e.kind, _moved(e), short.get(e.actor, e.actor), _what(e))
            for e in events
        ],
        keep=("seq", "at", "kind"),
    )
    for worker, name in short.items():
        print(f"{name} is {safe(worker)}")


def _moved(event: TrailEvent) -> str:
    if event.from_state in (None, event.to_state):
        return event.to_state
    return f"{event.from_state} > {event.to_state}"


def _what(event: TrailEvent) -> str:
    attempt = f"attempt {event.attempt}" if event.attempt > 1 else ""
    return "; ".join(part for part in (event.code, event.message, attempt) if part)


# --- acts -----------------------------------------------------------------------


@group.command("decide")
def decide(
    job: JobArgument,
    choice: Annotated[str, typer.Argument(metavar="CHOICE", help="One of the gate's choices.")],
    actor: ActorOption,
    app: AppOption = None,
    note: NoteOption = "",
    data: Annotated[
        str | None, typer.Option(metavar="JSON", help="What the gate asks for.")
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="A role of the actor, checked by the gate; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Return the gate that a job waits at."""
    said = _json(data)

    def answer(engine: Engine) -> Job:
        return engine.decide(job, choice, actor=actor, note=note, data=said, roles=role)

    _act(app, job, answer, as_json)


@group.command("release")
def release(
    job: JobArgument, actor: ActorOption, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Let a held job go on."""
    _act(app, job, lambda engine: engine.release(job, actor=actor, note=note), as_json)


@group.command("retry")
def retry(
    job: JobArgument, actor: ActorOption, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Run a failed job again, in a new round."""
    _act(app, job, lambda engine: engine.retry(job, actor=actor, note=note), as_json)


@group.command("cancel")
def cancel(
    job: JobArgument, actor: ActorOption, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """End a job: at once, or as soon as its stage has stopped."""
    _act(app, job, lambda engine: engine.cancel(job, actor=actor, note=note), as_json)


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint="--data") from None


def _act(app: str | None, job: str, act: Callable[[Engine], Job], as_json: bool) -> None:
    """Act on a job and show from where to where that has moved it."""
    with reading(app) as engine:
        before = engine.get(job)
        moved = act(engine)
    if as_json:
        print_json(job_document(moved))
        return
    asked = ", cancel requested of its worker" if moved.cancel_requested else ""
    print_facts([(moved.id, f"{before.state} > {moved.state} ({moved.role}){asked}")])
