"""`ulak migrate` and `ulak prune`: the care of the store itself."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ulak.cli import spans
from ulak.clock import micros, rfc3339, to_datetime
from ulak.kit.commands.output import JsonOption, print_json, some, when
from ulak.kit.commands.target import ActorOption, AppOption, NoteOption, in_force, load, reading

# Between two batches others may write; a batch of the default size takes about as long.
PAUSE_S = 0.05


def migrate(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Bring the store's schema to this release; workers of the release before may run on."""
    store = load(in_force(app)).store
    before, after = store.migrate()
    newest = getattr(store, "newest_schema", after)
    if as_json:
        print_json({"before": before, "after": after, "newest": newest})
    elif after > newest:
        print(f"schema {after}: nothing to do; this release knows {newest} and may run on it")
    elif before == after:
        print(f"schema {after}: nothing to do")
    else:
        print(f"schema {before} > {after}")


def prune(
    older_than: Annotated[
        str, typer.Option(metavar="SPAN", help="Jobs that ended longer ago, such as 30d.")
    ],
    actor: ActorOption,
    note: NoteOption = "",
    app: AppOption = None,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Jobs per transaction.")] = 500,
    as_json: JsonOption = False,
) -> None:
    """Remove jobs that ended long ago, with their trails; proofs and unfinished jobs stay."""
    span, pruned = spans.read_span(older_than, "--older-than"), 0
    with reading(app) as engine:
        before = engine.store.clock.now() - micros(span)
        while gone := engine.store.prune(before=before, limit=batch, actor=actor, note=note):
            pruned += gone
            time.sleep(PAUSE_S)
    moment = to_datetime(before)
    if as_json:
        print_json({"pruned": pruned, "before": rfc3339(moment)})
    else:
        print(f"pruned {some(pruned, 'job')} that ended before {when(moment)}")
