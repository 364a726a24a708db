"""Where the remote's judgement of a change differs from the one that was made here."""

from __future__ import annotations

from typing import Final

from ulak.services.contracts.outbox.events import Event
from ulak.services.contracts.outbox.outcomes import Outcome, Reply

COMPARED: Final = ("from", "to", "contract_version")


def drift_of(event: Event, outcome: Outcome, reply: Reply) -> str | None:
    """Say in what the remote differs; None when it does not, or has not judged.

    A refusal differs by itself, since here the change was made. Of an acceptance the members that
    both know are compared: a remote that stood elsewhere has come to the same status by another
    way, and one with another contract version may not do so the next time.
    """
    if outcome.verdict == "rejected":
        return outcome.why
    if outcome.verdict != "sent":
        return None
    body, answer = event.body, reply.document
    local = {**body, "contract_version": body.get("meta", {}).get("local_contract_version")}
    differences = [
        f"{name} is {answer[name]!r} there and {local[name]!r} here"
        for name in COMPARED
        if name in answer and local.get(name) is not None and answer[name] != local[name]
    ]
    return "; ".join(differences) or None
