"""`ulak idempotency`: what is kept of a key, and how it is removed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ulak.clock import Instant, rfc3339, to_datetime
from ulak.errors import NotFound
from ulak.idempotency.guard import Guard
from ulak.kit.commands.output import JsonOption, print_facts, print_json, some, when
from ulak.kit.commands.target import ActorOption, AppOption, NoteOption, reading
from ulak.store.records import RecordId, RecordRow
from ulak.wiring import idempotency_settings

group = typer.Typer(no_args_is_help=True, help="Show and remove records of idempotency keys.")

ScopeOption = Annotated[
    str, typer.Option("--scope", help="Of which operation, such as jobs.submit.")
]
KeyOption = Annotated[str, typer.Option("--key", help="The key, as its caller wrote it.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="Whose key it is; '' for nobody's.")]


@group.command("show")
def show(
    scope: ScopeOption,
    key: KeyOption,
    tenant: TenantOption = "",
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Show what was answered, which may be confidential.")
    ] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is kept of a key: who executes it, or how it was answered."""
    id = RecordId(tenant, scope, key)
    with reading(app) as engine:
        row = Guard(engine.store).record(id)
    if row is None:
        raise NotFound(_absent(id))
    document = _document(row, reveal=reveal)
    if as_json:
        print_json(document)
    else:
        print_facts([(name, _shown(name, value)) for name, value in document.items()])


@group.command("forget")
def forget(
    scope: ScopeOption,
    key: KeyOption,
    actor: ActorOption,
    tenant: TenantOption = "",
    note: NoteOption = "",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the record of a key, whatever it says: the next request executes. Audited."""
    id = RecordId(tenant, scope, key)
    with reading(app) as engine:
        if not Guard(engine.store).forget(id, actor=actor, note=note):
            raise NotFound(_absent(id))
    if as_json:
        print_json({"forgotten": True})
    else:
        print(f"forgotten: the next request with {key!r} executes")


@group.command("cleanup")
def cleanup(
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, help="Per transaction; else IDEMPOTENCY_CLEANUP_BATCH or 1000."
        ),
    ] = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove every record that has expired, as the schedule of the workers does."""
    with reading(app) as engine:
        removed = Guard(engine.store).clean_up(batch or idempotency_settings().cleanup_batch)
    if as_json:
        print_json({"removed": removed})
    else:
        print(f"removed {some(removed, 'record')} that had expired")


def _absent(id: RecordId) -> str:
    whose = f" of the tenant {id.tenant_id!r}" if id.tenant_id else ""
    return f"there is no record of the key {id.key!r}{whose} in the scope {id.scope!r}"


def _document(row: RecordRow, *, reveal: bool) -> dict[str, Any]:
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
        document[name] = _moment(document[name])
    return document


def _moment(instant: Instant | None) -> str | None:
    return None if instant is None else rfc3339(to_datetime(instant))


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith(("_at", "_until")):
        from datetime import datetime

        return when(datetime.fromisoformat(value))
    return str(value)
