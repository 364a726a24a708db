"""How commands speak: tables for people, one JSON document for programs, errors on one line."""

from __future__ import annotations

import json
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ulak.clock import rfc3339

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]

# What a pipe or a file gets; a terminal has its own width.
WIDTH = 100

STYLES: Mapping[str, str] = {
    "ready": "cyan",
    "busy": "cyan",
    "waiting": "yellow",
    "held": "bold yellow",
    "undoing": "magenta",
    "failed": "bold red",
    "done": "green",
    "expired": "red",
    "cancelled": "dim",
}


def console() -> Console:
    """Make the console of this moment's stdout; what it prints is never read as markup."""
    width = None if sys.stdout.isatty() else WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def some(number: int, what: str) -> str:
    """Count things: 1 job, 2 jobs."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def complain(message: str) -> None:
    """Say on stderr what went wrong, on one line."""
    print(f"error: {one_line(message)}", file=sys.stderr)


def say(message: str) -> None:
    """Tell whoever watches; at once, since a pipe would keep it back."""
    print(message, flush=True)


def note(message: str) -> None:
    """Say something on stderr that is no error and no answer."""
    print(f"note: {one_line(message)}", file=sys.stderr)


@contextmanager
def time_bar(title: str, seconds: float) -> Iterator[Callable[[str], None]]:
    """Show on stderr how much of its time some work has spent: on a terminal as a bar.

    Yields a function by which the work says how far it is: beside the bar, and elsewhere as a line.
    """
    from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn
    from rich.progress_bar import ProgressBar

    class TimeBar(BarColumn):
        def render(self, task: Task) -> ProgressBar:
            task.completed = min(task.elapsed or 0.0, seconds)
            return super().render(task)

    began = time.monotonic()

    def write(text: str) -> None:
        passed_s = time.monotonic() - began
        print(f"{title}: {one_line(text)}, after {passed_s:.1f} s", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield write
        return
    columns = TextColumn("{task.description}", markup=False), TimeBar(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(title, total=seconds)
        yield lambda text: shown.update(task, description=f"{title}: {one_line(text)}")


def print_json(document: Any) -> None:
    plain = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    try:
        text = json.dumps(document, ensure_ascii=not plain, indent=2, default=_plain)
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can carry
        text = json.dumps(document, indent=2, default=_plain)
    print(text)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, keep: Sequence[str] = ()
) -> None:
    """Print a table; the columns in `keep` are never folded, since people copy from them."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.upper(), no_wrap=column in keep, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(safe(cell)) for cell in row))
    _print(table)


def print_facts(facts: Iterable[tuple[str, str | Text]]) -> None:
    """Print names and values, a line each."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(name), value if isinstance(value, Text) else Text(safe(value)))
    _print(table)


def print_list(
    document: Any,
    as_json: bool,
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    keep: Sequence[str],
    empty: str,
) -> None:
    """Print a list as a JSON document or a table; for people, say `empty` where it has no rows."""
    if as_json:
        print_json(document)
    elif rows:
        print_table(columns, rows, keep=keep)
    else:
        note(empty)


def print_fact(document: Any, as_json: bool, name: str, value: str) -> None:
    """Print what a command did: as a JSON document, or as one name and value."""
    if as_json:
        print_json(document)
    else:
        print_facts([(name, value)])


def print_acts(
    done: str, acts: Iterable[tuple[object, Exception | None]], what: str, *, as_json: bool
) -> None:
    """Print with which things something was done, by their ids, and why it was not with others:
    then the command exits with 1. `done` is a word for it, as `redriven`; `what` is one thing."""
    outcomes = list(acts)
    ids = [id for id, error in outcomes if error is None]
    refused = {str(id): str(error) for id, error in outcomes if error is not None}
    if as_json:
        print_json({done: ids, "refused": refused})
    else:
        print(f"{done} {some(len(ids), what)}")
    for why in refused.values():
        complain(why)
    if refused:
        raise typer.Exit(1)


def _print(table: Table) -> None:
    """Print without the spaces that fill up lines: what is copied should be what is seen."""
    screen = console()
    with screen.capture() as captured:
        screen.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def role_text(role: str, text: str | None = None) -> Text:
    return Text(safe(role if text is None else text), style=STYLES.get(role, ""))


def when(moment: datetime | None) -> str:
    """Write a time for people: RFC 3339 in UTC, to the second; '-' for none."""
    if moment is None:
        return "-"
    return rfc3339(moment, "seconds")


def pretty(value: Any) -> str:
    """Write plain data for people, on one line when it is short."""
    short = json.dumps(value, ensure_ascii=False, default=_plain)
    if len(short) <= WIDTH - 20:
        return short
    return json.dumps(value, ensure_ascii=False, indent=2, default=_plain)


def safe(text: str) -> str:
    """Show what would move the cursor or colour the screen instead of doing it; lines stay."""
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or _is_harmless(c) else _escape(c) for c in text)


def one_line(text: str) -> str:
    """Put a message on one line, harmless."""
    return safe(" ".join(text.split()))


def _is_harmless(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _plain(value: Any) -> Any:
    """Write what JSON does not know: times as RFC 3339, everything else as its text."""
    if isinstance(value, datetime):
        return rfc3339(value, "auto")
    return sorted(value) if isinstance(value, frozenset | set) else str(value)
