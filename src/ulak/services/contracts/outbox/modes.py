"""What `HOS_MODE` makes of an engine: changes are decided here, or by a remote.

In mode `remote` nothing is stored here. A change that the remote cannot be asked about is not
made; a question about what is allowed is answered with nothing, so that a page can still be shown.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ulak import Engine
from ulak.errors import BadInput, NotSupported, StoreError
from ulak.idempotency import Answer, Answered, Guard
from ulak.services.contracts.configuration import contracts_of
from ulak.services.contracts.contracts import Contracts
from ulak.services.contracts.outbox.desk import emit
from ulak.services.contracts.outbox.remote import (
    CAN_TRANSITION,
    FOREIGN,
    TRANSITION,
    VERSIONS,
    Fault,
    Remote,
    Reply,
    is_of_the_remote,
    is_passing,
)
from ulak.services.contracts.outbox.sending import declare
from ulak.services.contracts.outbox.settings import RemoteSettings
from ulak.services.contracts.requests import Transition, Verdict, join_object
from ulak.services.contracts.tables import Version, Versions, read

if TYPE_CHECKING:
    from ulak.web import Routes

log = logging.getLogger("ulak.contracts.remote")

UNAVAILABLE: Final = "remote_unavailable"
NOTHING: Final = Versions(MappingProxyType({}), Version("", MappingProxyType({})))

_HANDED_ON: Final = {"content-type": "Content-Type", "retry-after": "Retry-After"}


class RemoteUnavailable(StoreError):
    """The remote decides and could not be asked; trying again with the same key is safe."""

    code = UNAVAILABLE


class RemoteContracts:
    """Asks a remote what `Contracts` would decide here."""

    guard: Guard | None = None
    """The remote has one of its own."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def transition(self, asked: Transition) -> Answered:
        """Have the remote move a subject, once per key, and return its answer. Raises
        `RemoteUnavailable`: it could not be asked, or has not answered; it may have made the
        change, and says so when it is asked again with the same key."""
        reply = self._ask(TRANSITION, asked, "ok")
        if reply is None:
            raise RemoteUnavailable(
                "the remote decides about changes and cannot be asked now; try again with the "
                "same idempotency key"
            )
        headers = tuple(
            (name, reply.headers[stored])
            for stored, name in _HANDED_ON.items()
            if stored in reply.headers
        )
        is_replay = reply.headers.get("idempotent-replayed") == "true"
        return Answered(Answer(reply.status, reply.body, headers), is_replay=is_replay)

    def can_transition(self, asked: Transition) -> tuple[Verdict, str]:
        """Ask the remote whether it would; while it cannot be asked, nothing is allowed.
        `BadInput`: it does not understand the question."""
        reply = self._ask(CAN_TRANSITION, asked, "allowed")
        if reply is None:
            return Verdict(UNAVAILABLE), ""
        document = reply.document
        if reply.status != HTTPStatus.OK or "allowed" not in document:
            raise BadInput(str(document.get("detail") or f"the remote answers {reply.status}"))
        reason = None if document["allowed"] is True else str(document.get("reason"))
        return Verdict(reason), str(document.get("contract_version", ""))

    @property
    def versions(self) -> Versions:
        """The remote's tables; none while it cannot be asked."""
        reply = self._ask(VERSIONS)
        if reply is None:
            return NOTHING
        try:
            document: Any = reply.document
            known = {
                name: read(json.dumps({"version": name, "types": types}), "the remote")
                for name, types in document["versions"].items()
            }
            return Versions(MappingProxyType(known), known[document["active"]])
        except (BadInput, KeyError, AttributeError) as error:
            log.warning("the remote's tables cannot be read", extra={"error": str(error)})
            return NOTHING

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotSupported(
            "with HOS_MODE=remote subjects and proofs are kept by the remote; ask "
            f"{self._remote.settings.base_url}"
        )

    find_subject = record = proofs = verify = _refuse

    def _ask(self, path: str, asked: Transition | None = None, verdict: str = "") -> Reply | None:
        """Return what the remote answered; None, and a line in the log, when that was not the
        remote, or not to us. `verdict` is the member that answers to a request have."""
        reply = self._remote.ask(path, None if asked is None else _body_of(asked))
        if isinstance(reply, Fault):
            why = reply.why
        elif is_passing(reply.status):  # about our key or the remote itself, not our caller
            why = f"HTTP {reply.status}"
        elif asked is not None and not is_of_the_remote(reply, asked.key, verdict=verdict):
            why = f"HTTP {reply.status}: {FOREIGN}"
        else:
            return reply
        log.warning("the remote cannot be asked", extra={"path": path, "why": why})
        return None


Decider = Contracts | RemoteContracts


def attach(engine: Engine, settings: RemoteSettings) -> Decider:
    """Return who decides about changes; in mode `hybrid`, have workers tell the remote of each.

    Nothing is opened. To be called once for an engine. Raises `BadInput` for a setting that cannot
    be used, `NotSupported` where the store has no transactions to share or an extra is missing.
    """
    if settings.mode == "remote":
        return RemoteContracts(Remote(settings))
    if settings.mode == "embedded":
        return contracts_of(engine)
    remote = Remote(settings)
    contracts = contracts_of(
        engine, on_change=partial(emit, engine, key_prefix=settings.key_prefix)
    )
    declare(engine, remote)
    return contracts


def routes_of(engine: Engine, settings: RemoteSettings, decider: Decider) -> Routes:
    """Make the routes of contracts and, in mode `hybrid`, those of the outbox."""
    from ulak.services.contracts import routes
    from ulak.services.contracts.outbox import figures
    from ulak.web import Routes

    own = routes.routes_of(engine, decider)
    if settings.mode != "hybrid":
        return own
    more = figures.routes_of(engine, figures.Limits())
    return Routes([*own.routers, *more.routers], [*own.access, *more.access], more.metrics)


def _body_of(asked: Transition) -> bytes:
    """Write a request as the remote reads it, with details as the caller wrote them."""
    members: dict[str, Any] = {
        "idempotency_key": asked.key or None,
        "tenant_id": asked.tenant_id or None,
        "subject_ref": {"type": asked.type, **({"id": asked.id} if asked.id else {})},
        "from": asked.from_,
        "to": asked.to,
        "expected_version": asked.expected_version,
        "actor_id": asked.actor_id,
        "source": asked.source or asked.caller or None,
        "request_id": asked.request_id,
        "contract_version": asked.contract_version,
    }
    known = {name: json.dumps(value) for name, value in members.items() if value is not None}
    return join_object({**known, **asked.details}).encode()
