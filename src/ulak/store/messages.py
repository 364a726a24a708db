"""What every store shares about messages: the lines of the audit."""

from __future__ import annotations

import json
from typing import Final

from ulak.core.job import Message
from ulak.ids import to_text
from ulak.store.protocol.outbox import OutboxRow

REDRIVE: Final = "redrive"
DISCARD: Final = "discard"
FORGET: Final = "forget"


def subject_of(message: Message) -> str:
    """Return the subject of a line of audit about a message."""
    return f"message/{to_text(message.job_id)}/{message.seq}/{message.n}"


def details_of(row: OutboxRow) -> str:
    """Write which delivery it was; what it carries may be a secret."""
    facts = {"topic": row.message.topic, "key": row.message.key, "handler": row.handler}
    return json.dumps(facts, separators=(",", ":"))


def handler_subject(name: str) -> str:
    """Return the subject of a line of audit about a handler."""
    return f"handler/{name}"


def handler_details(discarded: int) -> str:
    """Write how many deliveries went with a handler."""
    return json.dumps({"discarded": discarded}, separators=(",", ":"))
