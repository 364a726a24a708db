"""A migration names the oldest release that may run on it, and only those below are refused."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tests.conformance.stores import make_schema
from tests.upgrade import later
from ulak.errors import StoreError
from ulak.store.protocol import Store
from ulak.store.schemas import NAMED
from ulak.wiring import store_of

UNNAMED = {
    "store/sqlite/schema": 5,
    "store/postgres/schema": 4,
    "services/contracts/sql/sqlite": 2,
    "services/contracts/sql/postgresql": 2,
    "services/pdf/sql": 1,
}
"""For each folder of migrations the last one that was released without naming a release."""


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of this release, closed."""
    if request.param == "sqlite":
        made = store_of(f"sqlite:///{tmp_path}/app.db")
        made.migrate()
        yield made
        return
    with request.getfixturevalue("databases").lend(make_schema) as url:
        yield store_of(url)


@pytest.mark.shows("E-90")
def test_a_release_opens_a_newer_schema_that_lets_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as following:
        later.teach(following.setattr)
        newest, newer = store.migrate()
    assert newer == newest + 1
    store.open()
    about = store.about()
    assert (about["schema"], about["newest_schema"], about["oldest_schema"]) == (
        newer, newest, newest,
    )  # fmt: skip
    assert store.migrate() == (newer, newer), "nothing is done, and nothing undone"
    store.close()


@pytest.mark.shows("E-90")
def test_a_release_below_the_oldest_is_refused_with_the_numbers_and_the_cure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = store.newest_schema
    with monkeypatch.context() as following:
        later.teach(following.setattr, oldest=newest + 1)
        store.migrate()
    refusal = re.escape(
        f" is at schema {newest + 1}, this ulak knows {newest}, and only releases that know "
        f"{newest + 1} or later may run on it: a newer release has run `ulak migrate` on it; "
        "install that release"
    )
    with pytest.raises(StoreError, match=refusal):
        store.open()
    with pytest.raises(StoreError, match=refusal):
        store.migrate()


@pytest.mark.shows("E-90")
def test_of_several_migrations_the_strictest_decides(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = store.newest_schema
    with monkeypatch.context() as following:
        later.teach(following.setattr, oldest=newest + 1)
        later.teach(following.setattr, oldest=newest, word="latest")
        assert store.migrate() == (newest, newest + 2)
    with pytest.raises(StoreError, match=f"only releases that know {newest + 1} or later"):
        store.open()


@pytest.mark.shows("E-90")
def test_every_later_migration_names_the_oldest_release_that_may_run_on_it() -> None:
    root = Path(str(files("ulak")))
    for path in root.rglob("[0-9][0-9][0-9][0-9].sql"):
        number = int(path.stem)
        if number > UNNAMED.get(str(path.parent.relative_to(root)), 0):
            named = NAMED.findall(path.read_text())
            assert len(named) == 1, f"{path} names no oldest release"
            assert int(named[0]) <= number, f"{path} names one that is newer than itself"
