"""`ulak contracts` and `ulak proof`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from ulak.kit.commands import AppOption, JsonOption, print_json, print_table, reading, some
from ulak.services.contracts.configuration import contracts_of
from ulak.services.contracts.tables import versions_in_force, written

contracts = typer.Typer(no_args_is_help=True, help="Contract versions.")
proof = typer.Typer(no_args_is_help=True, help="Proofs of what happened to contract subjects.")


# A group with one command is that command itself, unless it has a callback.
@contracts.callback()
def _contracts() -> None:
    """Contract versions."""


@contracts.command("tables")
def tables(as_json: JsonOption = False) -> None:
    """List what may follow what, by version and type."""
    versions = versions_in_force()
    if as_json:
        known = {name: written(version) for name, version in versions.known.items()}
        print_json({"active": versions.active.name, "versions": known})
        return
    rows = [
        (name + (" (active)" if version is versions.active else ""), kind, source, ", ".join(to))
        for name, version in versions.known.items()
        for kind, table in version.tables.items()
        for source, to in (*table.moves.items(), *((end, ("-",)) for end in sorted(table.terminal)))
    ]
    print_table(("version", "type", "from", "to"), rows, keep=("version",))


@proof.callback()
def _proof() -> None:
    """Proofs of what happened to contract subjects."""


@proof.command("verify")
def verify(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Check every tenant's chain of proofs, its head and its subjects; exit 1 on a finding."""
    with reading(app) as engine:
        report = contracts_of(engine).verify()
    if as_json:
        print_json(asdict(report))
    elif report.broken:
        rows = [
            (
                found.tenant_id,
                "-" if found.proof_id is None else str(found.proof_id),
                found.sentence,
            )
            for found in report.broken
        ]
        print_table(("tenant", "proof", "finding"), rows, keep=("tenant", "proof"))
    else:
        chains = some(report.tenants, "tenant")
        print(f"{some(report.proofs, 'proof')} of {chains}: every chain is whole")
    if report.broken:
        raise typer.Exit(1)
