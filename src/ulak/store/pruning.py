"""What every store shares about jobs that an operator removes: the line of audit."""

from __future__ import annotations

import json
from typing import Final

from ulak.clock import Instant, rfc3339, to_datetime

PRUNE: Final = "prune"
SUBJECT: Final = "jobs"


def details_of(jobs: int, before: Instant) -> str:
    """Write how many were removed, and when they had ended at the latest."""
    return json.dumps(
        {"jobs": jobs, "ended_before": rfc3339(to_datetime(before))}, separators=(",", ":")
    )
