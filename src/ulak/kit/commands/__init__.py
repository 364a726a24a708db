"""Commands of services that look like ulak's own: options, tables, JSON, and the engine they are
about. Needs Typer, which the command line has."""

from ulak.kit.commands.output import (
    JsonOption,
    complain,
    note,
    print_acts,
    print_json,
    print_list,
    print_table,
    some,
    time_bar,
    when,
)
from ulak.kit.commands.target import (
    ActorOption,
    AppOption,
    HostOption,
    NoteOption,
    load_service,
    opened_service,
    reading,
)

__all__ = [
    "ActorOption",
    "AppOption",
    "HostOption",
    "JsonOption",
    "NoteOption",
    "complain",
    "load_service",
    "note",
    "opened_service",
    "print_acts",
    "print_json",
    "print_list",
    "print_table",
    "reading",
    "some",
    "time_bar",
    "when",
]
