"""Two processes of one installation: an identity each, one file, one clock that is turned."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ulak.auth.identity import Identity
from ulak.clock import ManualClock
from ulak.store.sqlite import SqliteStore


class Office:
    """An installation with two processes."""

    secret = "a secret of tests that is long enough"  # noqa: S105 - guards nothing

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.stores = [SqliteStore(path, clock=self.clock) for _ in range(2)]
        for store in self.stores:
            store.open()
        self.here, self.there = (Identity(store, secret=self.secret) for store in self.stores)

    def turn(self, **span: float) -> None:
        self.clock.advance(timedelta(**span))

    def key(self, **options: object) -> str:
        """Make a key and answer its text."""
        made = self.here.create_key("ci", **{"roles": ["service"], "actor": "ada"} | options)
        return made.text

    def user(self, name: str = "ada", password: str | None = None, **options: object) -> None:
        """Make a user, whose password is `correct horse` unless another is said."""
        password = "correct horse" if password is None else password
        self.here.create_user(name, password, **{"roles": ["operator"], "actor": "root"} | options)


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path / "jobs.db")
    yield made
    for store in made.stores:
        store.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash with little memory: what is tested is who is let in, not how long it takes."""
    from argon2 import Parameters, Type, profiles

    cheap = Parameters(Type.ID, 19, 16, 32, time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(profiles, "RFC_9106_LOW_MEMORY", cheap)
