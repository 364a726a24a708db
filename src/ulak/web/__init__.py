"""The HTTP surface. Needs the extra `ulak[web]`."""

try:
    from ulak.web.access import KNOWN, PUBLIC, Access, Routes
    from ulak.web.callers import Caller, guarded_router
    from ulak.web.factory import app
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"ulak.web needs {error.name}, which is not installed; pip install 'ulak[web]'",
        name=error.name,
    ) from error

__all__ = ["KNOWN", "PUBLIC", "Access", "Caller", "Routes", "app", "guarded_router"]
