"""The HTTP surface. Needs the extra `ulak[web]`."""

from ulak.web.access import KNOWN, PUBLIC, Access
from ulak.web.callers import Caller, guarded_router
from ulak.web.factory import app
from ulak.web.services import Routes

__all__ = ["KNOWN", "PUBLIC", "Access", "Caller", "Routes", "app", "guarded_router"]
