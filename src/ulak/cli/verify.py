"""`ulak verify`: does the store keep its promises?"""

from __future__ import annotations

import typer

from ulak.kit.commands.output import JsonOption, print_json, print_table, some
from ulak.kit.commands.target import AppOption, in_force, reading
from ulak.service import get_service


def verify(app: AppOption = None, as_json: JsonOption = False) -> None:
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
        print_json({"jobs": jobs, "findings": said})
    elif findings:
        rows = [(f.kind, f"{f.job_id}: {f.sentence}" if f.job_id else f.sentence) for f in findings]
        print_table(("kind", "finding"), rows, keep=("kind",))
    else:
        print(f"{some(jobs, 'job')}: every trail, key, slot and counter agrees")
    if findings:
        raise typer.Exit(1)
