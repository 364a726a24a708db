"""What every test may use: the requirements that it shows, and the servers that it asks for.

And what every test must keep: secrets.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

# No test fails for being slow: a machine may be busy.
settings.register_profile(
    "patient", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

AMPLE_S = 120.0

pytest_plugins = [
    "tests.shows",
    "tests.sampling",
    "tests.secrets_watch",
    "tests.servers",
    "tests.forked_commands",
    "tests.user_namespaces",
    "tests.tracebacks",
]


@pytest.fixture(autouse=True)
def ample_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let probes and scrapes wait for a store on a machine that is busy."""
    from ulak.web import metrics
    from ulak.web.routes import health

    for module in (metrics, health):
        monkeypatch.setattr(module, "PATIENCE_S", AMPLE_S)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return two processes for a core: a third of a test's time is waiting for children."""
    return (os.cpu_count() or 1) * 2
