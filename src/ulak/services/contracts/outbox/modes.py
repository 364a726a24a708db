"""What `HOS_MODE` makes of an engine: who decides about changes, who is told, what is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ulak import Engine
from ulak.services.contracts.configuration import contracts_of
from ulak.services.contracts.outbox.deciding import Decider, RemoteContracts
from ulak.services.contracts.outbox.figures import Limits
from ulak.services.contracts.outbox.remote import Remote
from ulak.services.contracts.outbox.settings import RemoteSettings
from ulak.services.contracts.outbox.shadow import Shadow, dispatch_beside_workers
from ulak.services.contracts.outbox.tables import Tables

if TYPE_CHECKING:
    from ulak.web import Routes


def decider_of(engine: Engine, settings: RemoteSettings) -> Decider:
    """Return who decides about changes; nothing is opened.

    Raises:
        BadInput: a setting cannot be used.
        NotSupported: the store has no transactions to share, or an extra is not installed.
    """
    if settings.mode == "remote":
        return RemoteContracts(Remote(settings))
    if settings.mode == "embedded":
        return contracts_of(engine)
    shadow = Shadow(Tables(engine), key_prefix=settings.key_prefix)
    return contracts_of(engine, on_change=shadow)


def attach(engine: Engine, settings: RemoteSettings) -> None:
    """Refuse what would fail the first request; in mode `hybrid`, have workers tell the remote.

    Raises:
        BadInput: a setting cannot be used.
        NotSupported: as `decider_of`.
    """
    decider_of(engine, settings)
    if settings.mode == "hybrid":
        dispatch_beside_workers(engine, Remote(settings))


def routes_of(engine: Engine, settings: RemoteSettings) -> Routes:
    """Make the routes of contracts and, in mode `hybrid`, those of the outbox."""
    from ulak.services.contracts import routes
    from ulak.services.contracts.outbox import routes as outbox
    from ulak.web import Routes

    own = routes.routes_of(engine, decider_of(engine, settings))
    if settings.mode != "hybrid":
        return own
    more = outbox.routes_of(Tables(engine), Limits())
    return Routes([*own.routers, *more.routers], [*own.access, *more.access], more.metrics)
