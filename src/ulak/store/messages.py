"""What every store shares about messages of the outbox: the lines of audit of those revived."""

from __future__ import annotations

import json
from typing import Final

from ulak.core.job import Message
from ulak.ids import to_text

REVIVE: Final = "revive"


def subject_of(message: Message) -> str:
    """Return the subject of a line of audit about a message."""
    return f"message/{to_text(message.job_id)}/{message.seq}/{message.n}"


def details_of(message: Message) -> str:
    """Write which message it was; what it carries may be a secret."""
    return json.dumps({"topic": message.topic, "key": message.key}, separators=(",", ":"))
