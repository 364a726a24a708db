"""Two processes of one installation: an identity each, one store, one clock that is turned."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from tests.conformance.places import place_of
from tests.conformance.stores import STORES
from ulak.auth.identity import Identity
from ulak.clock import ManualClock
from ulak.store.protocol import Store


class Office:
    """An installation with two processes."""

    secret = "a secret of tests that is long enough"  # noqa: S105 - guards nothing

    def __init__(self, make: Callable[[str], Store], where: str) -> None:
        self.where = where
        self.clock = ManualClock()
        self.stores = [make(where) for _ in range(2)]
        for store in self.stores:
            store.clock = self.clock
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

    def written(self) -> str:
        """Everything that is stored, as whoever has the disk would read it."""
        path = Path(self.where)
        if path.exists():
            files = path.parent.glob(f"{path.name}*")
            return "".join(file.read_bytes().decode("latin-1") for file in files)
        with psycopg.connect(self.where) as db:
            rows = db.execute(
                "SELECT c::text FROM ulak.credentials c UNION ALL SELECT a::text FROM ulak.audit a"
            )
            return "".join(text for (text,) in rows)


@pytest.fixture(params=["sqlite", "postgres"])
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    with place_of(request.param, request, tmp_path) as where:
        made = Office(STORES[request.param], where)
        yield made
        for store in made.stores:
            store.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash with little memory: what is tested is who is let in, not how long it takes."""
    from argon2 import Parameters, Type, profiles

    cheap = Parameters(Type.ID, 19, 16, 32, time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(profiles, "RFC_9106_LOW_MEMORY", cheap)
