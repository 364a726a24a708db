"""`ulak why`: the one true reason for which a job stands where it stands."""

from __future__ import annotations

from typing import Annotated

import typer

from ulak.kit.commands.output import JsonOption, print_facts, print_json, role_text, when
from ulak.kit.commands.target import AppOption, reading


def why(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a job stands where it stands."""
    with reading(app) as engine:
        found = engine.get(job)
        answer = engine.inspect.why(job)
    if as_json:
        document = {"job": found.id, "code": answer.code, "sentence": answer.sentence}
        print_json({**document, "facts": dict(answer.facts)})
        return
    print_facts(
        [
            ("job", f"{found.id}, {found.flow} version {found.version}"),
            ("state", role_text(found.role, f"{found.state} ({found.role})")),
            ("since", when(found.changed_at)),
            ("why", f"{answer.sentence} [{answer.code}]"),
        ]
    )
