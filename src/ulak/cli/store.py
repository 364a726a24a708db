"""The care of the store: its schema, old jobs, its promises, dead messages, records of keys."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

import typer

from ulak.cli import spans
from ulak.clock import micros, rfc3339, to_datetime
from ulak.control.process_metrics import ProcessMetrics, is_published
from ulak.control.state import SCHEMA
from ulak.engine.engine import Engine
from ulak.engine.view import delivery_document
from ulak.errors import BadInput, NotFound
from ulak.idempotency.guard import Guard
from ulak.kit.commands import output as out
from ulak.kit.commands.target import ActorOption, AppOption, NoteOption, in_force, load, reading
from ulak.service import get_service
from ulak.store.protocol import Store
from ulak.store.records import RecordId, RecordRow
from ulak.tables import Tables
from ulak.wiring import guard_of, idempotency_settings

# Between two batches others may write; a batch of the default size takes about as long.
PAUSE_S = 0.05


def migrate(app: AppOption = None, as_json: out.JsonOption = False) -> None:
    """Bring the store's schema to this release; workers of the release before may run on."""
    store = load(in_force(app)).store
    before, after = store.migrate()
    if before < after:
        _make_metrics(store)
    newest = getattr(store, "newest_schema", after)
    if as_json:
        out.print_json({"before": before, "after": after, "newest": newest})
    elif after > newest:
        print(f"schema {after}: nothing to do; this release knows {newest} and may run on it")
    elif before == after:
        print(f"schema {after}: nothing to do")
    else:
        print(f"schema {before} > {after}")


def _make_metrics(store: Store) -> None:
    """Make the tables of metrics and of adaptive control as well: who migrates may, and who works
    perhaps not."""
    with Engine(store) as engine:
        if is_published(engine):
            ProcessMetrics(engine).ensure()
            Tables(engine, SCHEMA).ensure()


def prune(
    older_than: Annotated[
        str, typer.Option(metavar="SPAN", help="Jobs that ended longer ago, such as 30d.")
    ],
    actor: ActorOption,
    note: NoteOption = "",
    app: AppOption = None,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Jobs per transaction.")] = 500,
    as_json: out.JsonOption = False,
) -> None:
    """Remove jobs that ended long ago, with their trails; proofs and unfinished jobs stay."""
    span, pruned = spans.read_span(older_than, "--older-than"), 0
    with reading(app) as engine:
        before = engine.store.clock.now() - micros(span)
        while gone := engine.store.prune(before=before, limit=batch, actor=actor, note=note):
            pruned += gone
            time.sleep(PAUSE_S)
    moment = to_datetime(before)
    _report(
        {"pruned": pruned, "before": rfc3339(moment)},
        as_json,
        f"pruned {out.some(pruned, 'job')} that ended before {out.when(moment)}",
    )


def verify(app: AppOption = None, as_json: out.JsonOption = False) -> None:
    """Replay every trail against its lifecycle; exit 1 when something is damaged."""
    from ulak.engine.verify import Finding

    found = in_force(app)
    with reading(app) as engine:
        findings = engine.inspect.verify()
        for service in map(get_service, found.services):
            if service.verify is not None:
                findings += [Finding(*stray) for stray in service.verify(engine, found)]
        jobs = sum(count.jobs for count in engine.inspect.counts())
    if as_json:
        said = [{"kind": f.kind, "job_id": f.job_id, "sentence": f.sentence} for f in findings]
        out.print_json({"jobs": jobs, "findings": said})
    elif findings:
        rows = [(f.kind, f"{f.job_id}: {f.sentence}" if f.job_id else f.sentence) for f in findings]
        out.print_table(("kind", "finding"), rows, keep=("kind",))
    else:
        print(f"{out.some(jobs, 'job')}: every trail, key, slot and counter agrees")
    if findings:
        raise typer.Exit(1)


outbox = typer.Typer(no_args_is_help=True, help="Messages that could not be published.")

MOST_REVIVED = 10_000


@outbox.command("dead")
def dead(
    app: AppOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    as_json: out.JsonOption = False,
) -> None:
    """List messages that gave up, the oldest first."""
    with reading(app) as engine:
        found = engine.outbox.dead(limit=limit)
    out.print_list(
        {"messages": [delivery_document(message) for message in found]},
        as_json,
        ("message", "topic", "state", "tries", "emitted"),
        [(m.id, m.topic, m.state, str(m.tries), out.when(m.at)) for m in found],
        keep=("message", "emitted"),
        empty="no dead messages",
    )


@outbox.command("revive")
def revive(
    actor: ActorOption,
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="MESSAGE", help="As `dead` names them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every dead message.")] = False,
    why: NoteOption = "",
    app: AppOption = None,
    as_json: out.JsonOption = False,
) -> None:
    """Let dead messages be tried again."""
    wanted = set(messages or ())
    if every == bool(wanted):
        raise typer.BadParameter("name the messages, or say --all", param_hint="MESSAGE")
    with reading(app) as engine:
        dead = {message.id for message in engine.outbox.dead(limit=MOST_REVIVED)}
        if unknown := wanted - dead:
            raise BadInput(f"no dead message is {', '.join(sorted(unknown))}; nothing was revived")
        revived = 0
        for message in sorted(dead if every else wanted):
            with suppress(NotFound):  # somebody else was faster
                engine.outbox.redrive(message, actor=actor, note=why)
                revived += 1
    _report({"revived": revived}, as_json, f"revived {out.some(revived, 'message')}")


idempotency = typer.Typer(no_args_is_help=True, help="Show and remove records of idempotency keys.")

ScopeOption = Annotated[
    str, typer.Option("--scope", help="Of which operation, such as jobs.submit.")
]
KeyOption = Annotated[str, typer.Option("--key", help="The key, as its caller wrote it.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="Whose key it is; '' for nobody's.")]


@idempotency.command("show")
def show(
    scope: ScopeOption,
    key: KeyOption,
    tenant: TenantOption = "",
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Show what was answered, which may be confidential.")
    ] = False,
    app: AppOption = None,
    as_json: out.JsonOption = False,
) -> None:
    """Show what is kept of a key: who executes it, or how it was answered."""
    id = RecordId(tenant, scope, key)
    with reading(app) as engine:
        row = _guard(engine).record(id)
    if row is None:
        raise NotFound(_absent(id))
    document = _record_document(row, reveal=reveal)
    if as_json:
        out.print_json(document)
    else:
        out.print_facts([(name, _shown(name, value)) for name, value in document.items()])


@idempotency.command("forget")
def forget(
    scope: ScopeOption, key: KeyOption, actor: ActorOption, tenant: TenantOption = "",
    note: NoteOption = "", app: AppOption = None, as_json: out.JsonOption = False,
) -> None:  # fmt: skip
    """Remove the record of a key, whatever it says: the next request executes. Audited."""
    id = RecordId(tenant, scope, key)
    with reading(app) as engine:
        if not _guard(engine).forget(id, actor=actor, note=note):
            raise NotFound(_absent(id))
    _report({"forgotten": True}, as_json, f"forgotten: the next request with {key!r} executes")


@idempotency.command("cleanup")
def cleanup(
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, help="Per transaction; else IDEMPOTENCY_CLEANUP_BATCH or 1000."
        ),
    ] = None,
    app: AppOption = None,
    as_json: out.JsonOption = False,
) -> None:
    """Remove every record that has expired, as the schedule of the workers does."""
    with reading(app) as engine:
        guard = _guard(engine)
        removed = guard.clean_up(batch or idempotency_settings().cleanup_batch)
    said = f"removed {out.some(removed, 'record')} that had expired"
    if guard.features.removes_expired:
        said = f"nothing to remove: {guard.features.name} removes by itself what has expired"
    _report({"removed": removed}, as_json, said)


def _guard(engine: Engine) -> Guard:
    """Return the guard whose records the settings name; in memory they are another process's."""
    kept = idempotency_settings()
    return guard_of(engine, "dev", kept) if kept.backend == "redis" else Guard(engine.store)


def _absent(id: RecordId) -> str:
    whose = f" of the tenant {id.tenant_id!r}" if id.tenant_id else ""
    return f"there is no record of the key {id.key!r}{whose} in the scope {id.scope!r}"


def _record_document(row: RecordRow, *, reveal: bool) -> dict[str, Any]:
    """Return what is kept, without the token and, unless wanted, without the answer."""
    document = row._asdict()
    for name in ("owner_token", "recovery_data"):
        del document[name]
    body = document.pop("response_json")
    data: bytes | None = document.pop("response_bytes")
    if reveal:
        document["response"] = body if data is None else data.hex()
    else:
        del document["response_headers"]
    for name in ("lease_until", "created_at", "updated_at", "expires_at"):
        if document[name] is not None:
            document[name] = rfc3339(to_datetime(document[name]))
    return document


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith(("_at", "_until")):
        return out.when(datetime.fromisoformat(value))
    return str(value)


def _report(document: Any, as_json: bool, sentence: str) -> None:
    if as_json:
        out.print_json(document)
    else:
        print(sentence)
