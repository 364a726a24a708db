"""The HTTP surface. Needs the extra `ulak[web]`."""

from ulak.web.factory import app

__all__ = ["app"]
