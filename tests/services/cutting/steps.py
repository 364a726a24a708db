"""What operators and other programs do with an order while it is on its way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.services.cutting.desk import Desk
from tests.services.cutting.orders import make_order
from ulak.services.cutting.order import parse_order

PLAN = '<Plan><Solution name="one" algo="hand" best="1" mqBoards="5.88"/></Plan>'
PATH = (
    "NEW", "PREPARED", "OPTI_IMPORTED", "OPTI_RUNNING", "OPTI_DONE", "XML_READY", "DELIVERED",
    "DONE",
)  # fmt: skip
TRIGGER = "E_OPERATOR_TRIGGER_REQUIRED"
MISSING = "E_OPTI_MODE_A_RUNNER_MISSING"


def submit(desk: Desk, *parts: dict[str, Any], **changes: Any) -> str:
    """Send an order of mode C, unless it is said otherwise; return the id of its job."""
    order = make_order(*parts, **{"opti_mode": "C", **changes})
    payload = parse_order(order, rules=desk.cutting.config.rules())
    return desk.cutting.jobs.submit(payload, actor="ada")[0]["id"]


def find_imports(desk: Desk, job_id: str) -> list[Path]:
    """Return the import files of a job."""
    return sorted(desk.cutting.config.paths().import_folder.glob(f"{job_id}*.xlsx"))


def write_plans(desk: Desk, job_id: str, text: str = PLAN) -> None:
    """Leave a plan for each import file, as an operator who has run the optimiser."""
    folder = desk.cutting.config.paths().export_folder
    for file in find_imports(desk, job_id):
        (folder / f"{file.stem}.xml").write_text(text)


def hold_for_operator(desk: Desk, *parts: dict[str, Any], **changes: Any) -> str:
    """Send an order of mode C, and bring it to where the operator is asked."""
    job_id = submit(desk, *parts, **changes)
    desk.work()
    assert get(desk, job_id)["error_code"] == TRIGGER
    return job_id


def approve(desk: Desk, job_id: str) -> None:
    """Let a held job go on, as far as it comes."""
    desk.cutting.jobs.approve(job_id, actor="ada")
    desk.work()


def get(desk: Desk, job_id: str) -> dict[str, Any]:
    return desk.cutting.jobs.get(job_id)


def find_state(desk: Desk, job_id: str) -> tuple[str, str | None]:
    """Return how a job stands: its state and its code."""
    job = get(desk, job_id)
    return job["state"], job["error_code"]


def list_events(desk: Desk, job_id: str) -> list[str]:
    """Return the types of what has happened to a job."""
    return [event["event_type"] for event in desk.cutting.jobs.audit(job_id)]


def find_details(desk: Desk, job_id: str, kind: str) -> list[Any]:
    """Return the details of every event of a type."""
    events = desk.cutting.jobs.audit(job_id)
    return [json.loads(e["details_json"]) for e in events if e["event_type"] == kind]


def find_entries(desk: Desk, job_id: str) -> list[tuple[str | None, str]]:
    """Return each change of state of a job: from where, to where."""
    trail = desk.engine.inspect.trail(job_id)
    moves = [(line.from_state, line.to_state) for line in trail]
    return [move for move in moves if move[0] != move[1]]
