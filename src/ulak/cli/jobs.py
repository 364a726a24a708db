"""`ulak jobs` and `ulak why`: read jobs and act on them."""

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
from ulak.core.job import Request
from ulak.core.lifecycle import CLAIMABLE, ROLES
from ulak.engine.engine import Engine
from ulak.engine.view import Job, TrailEvent, backlog_document, event_document, job_document
from ulak.errors import TransitionNotAllowed
from ulak.ids import from_text
from ulak.kit.commands import output as out
from ulak.kit.commands.target import ActorOption, AppOption, NoteOption, reading
from ulak.store.protocol import JobFilter, Progress

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
    as_json: out.JsonOption = False,
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
        out.print_json({"jobs": documents, "next": following, "unserved": where.unserved})
        return
    if where.unserved is not None:
        out.note(where.unserved)
    if not page:
        out.note("no jobs")
        return
    _print_jobs(page)
    if following is not None:
        out.note(f"there are more: --after {following}")


def _print_jobs(jobs: list[Job]) -> None:
    has_tenants = any(job.tenant for job in jobs)
    rows = []
    for job in jobs:
        row: list[str | Text] = [
            job.id, job.flow, out.role_text(job.role, job.state), out.when(job.changed_at),
            out.role_text(job.role, ": ".join(part for part in (_standing(job), job.code) if part)),
        ]  # fmt: skip
        rows.append([*row, job.tenant] if has_tenants else row)
    columns = ["id", "flow", "state", "changed", "role"] + (["tenant"] if has_tenants else [])
    out.print_table(columns, rows, keep=("id", "changed"))


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
def counts(app: AppOption = None, as_json: out.JsonOption = False) -> None:
    """Count the jobs that are due, delayed, parked, leased and held, by flow and queue."""
    with reading(app) as engine:
        rows = engine.inspect.backlog()
    if as_json:
        out.print_json({"backlog": [backlog_document(row) for row in rows]})
        return
    if not rows:
        out.note("no jobs wait or run, and none has ended lately")
        return

    def number(row: Backlog, kind: str) -> str:
        return f"{getattr(row, kind):,}{'+' if kind in row.at_least else ''}"

    out.print_table(
        ("flow", "queue", *KINDS, "oldest due", "ended/s"),
        [
            (
                row.flow, row.queue, *(number(row, kind) for kind in KINDS),
                "" if row.oldest_due is None else out.when(row.oldest_due),
                f"{row.ended_per_second:.2f}",
            )
            for row in rows
        ],
        keep=("flow", *KINDS),
    )  # fmt: skip
    if any(row.at_least for row in rows):
        out.note("+ means that there are more")


@group.command("show")
def show(job: JobArgument, app: AppOption = None, as_json: out.JsonOption = False) -> None:
    """Show one job: how it stands, its payload, what it left."""
    with reading(app) as engine:
        found = engine.get(job)
        document = {**job_document(found), **_more(engine, found)}
    if as_json:
        out.print_json(document)
        return
    _print_job(found, document)


def _more(engine: Engine, job: Job) -> dict[str, Any]:
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
            {"kind": r.kind, "name": r.name, "actor": r.actor, "note": r.note or "", "at": _at(r)}
            for r in store.pending_requests(job_id)
        ],
        "result": None,
    }
    if progress is not None and not job.is_final:
        fraction, said = progress.fraction, progress.note
        more["progress"] = {"fraction": fraction, "note": said, "at": _at(progress)}
    with suppress(TransitionNotAllowed):  # a flow that this program does not declare
        more["result"] = engine.inspect.result(job.id, reveal=False)
    return more


def _at(row: Progress | Request) -> str:
    return rfc3339(to_datetime(row.at))


def _print_job(job: Job, document: dict[str, Any]) -> None:
    facts: list[tuple[str, str | Text]] = [
        ("job", job.id),
        ("flow", f"{job.flow} version {job.version}"),
        ("state", out.role_text(job.role, f"{job.state} ({job.role})")),
    ]
    delayed = job.not_before > job.changed_at and not job.is_final
    exceptional = {
        "code": job.code,
        "tenant": job.tenant,
        "leased by": job.leased_by,
        "parked on": job.parked_on,
        "not before": out.when(job.not_before) if delayed else "",
        "expires": out.when(job.expires_at) if job.expires_at else "",
        "cancel": "requested" if job.cancel_requested else "",
    }
    facts += [(name, value) for name, value in exceptional.items() if value]
    facts += [
        ("submitted", f"{out.when(job.created_at)} by {job.submitter or 'nobody in particular'}"),
        ("changed", out.when(job.changed_at)),
        ("round", f"{job.round}; failed attempts: {job.attempt}, lapses: {job.lapses}"),
    ]
    if document["choices"]:
        facts.append(("decide", " or ".join(document["choices"])))
    if document["declared"]:
        facts.append(("payload", out.pretty(document["payload"])))
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
        facts.append(("result", out.pretty(document["result"])))
    out.print_facts(facts)


@group.command("trail")
def trail(
    job: JobArgument,
    app: AppOption = None,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 1000,
    as_json: out.JsonOption = False,
) -> None:
    """Show what happened to a job, in order."""
    with reading(app) as engine:
        events = engine.inspect.trail(job, after=after, limit=limit)
    if as_json:
        out.print_json({"job": job, "events": [event_document(event) for event in events]})
        return
    # A worker's id is long and the same on most lines; it is told once, below.
    workers = dict.fromkeys(e.worker for e in events if e.worker is not None)
    short = {worker: f"worker {n}" for n, worker in enumerate(workers, start=1)}
    out.print_table(
        ("seq", "at", "kind", "state", "actor", "what"),
        [
            (str(e.seq), out.when(e.at), e.kind, _moved(e), short.get(e.actor, e.actor), _what(e))
            for e in events
        ],
        keep=("seq", "at", "kind"),
    )
    for worker, name in short.items():
        print(f"{name} is {out.safe(worker)}")


def _moved(event: TrailEvent) -> str:
    is_move = event.from_state not in (None, event.to_state)
    return f"{event.from_state} > {event.to_state}" if is_move else event.to_state


def _what(event: TrailEvent) -> str:
    attempt = f"attempt {event.attempt}" if event.attempt > 1 else ""
    return "; ".join(part for part in (event.code, event.message, attempt) if part)


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
    as_json: out.JsonOption = False,
) -> None:
    """Return the gate that a job waits at."""
    try:
        said = None if data is None else json.loads(data)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint="--data") from None

    def answer(engine: Engine) -> Job:
        return engine.decide(job, choice, actor=actor, note=note, data=said, roles=role)

    _act(app, job, answer, as_json)


def _add_act(verb: str, about: str) -> None:
    @group.command(verb, help=about)
    def act(
        job: JobArgument, actor: ActorOption, app: AppOption = None, note: NoteOption = "",
        as_json: out.JsonOption = False,
    ) -> None:  # fmt: skip
        _act(app, job, lambda engine: getattr(engine, verb)(job, actor=actor, note=note), as_json)


_add_act("release", "Let a held job go on.")
_add_act("retry", "Run a failed job again, in a new round.")
_add_act("cancel", "End a job: at once, or as soon as its stage has stopped.")


def _act(app: str | None, job: str, act: Callable[[Engine], Job], as_json: bool) -> None:
    with reading(app) as engine:
        before = engine.get(job)
        moved = act(engine)
    asked = ", cancel requested of its worker" if moved.cancel_requested else ""
    way = f"{before.state} > {moved.state} ({moved.role}){asked}"
    out.print_fact(job_document(moved), as_json, moved.id, way)


def why(job: JobArgument, app: AppOption = None, as_json: out.JsonOption = False) -> None:
    """Say why a job stands where it stands."""
    with reading(app) as engine:
        found = engine.get(job)
        answer = engine.inspect.why(job)
    if as_json:
        document = {"job": found.id, "code": answer.code, "sentence": answer.sentence}
        out.print_json({**document, "facts": dict(answer.facts)})
        return
    out.print_facts(
        [
            ("job", f"{found.id}, {found.flow} version {found.version}"),
            ("state", out.role_text(found.role, f"{found.state} ({found.role})")),
            ("since", out.when(found.changed_at)),
            ("why", f"{answer.sentence} [{answer.code}]"),
        ]
    )
