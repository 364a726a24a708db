"""The HTTP surface. Needs the extra `ulak[web]`."""

from ulak.web.access import KNOWN, PUBLIC, Access
from ulak.web.callers import Caller
from ulak.web.factory import app
from ulak.web.services import Routes

__all__ = ["KNOWN", "PUBLIC", "Access", "Caller", "Routes", "app"]
