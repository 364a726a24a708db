"""Publishing on either database; what is dear is made once and shared, and found as new."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from argon2 import PasswordHasher

from bench.publishing.blog import Blog, Stores
from bench.zygote import Zygote
from tests.services.publishing.plays import APART, BESIDE, PLAYED_ORDERS
from tests.services.publishing.plays import VARIABLES as PLAYED
from tests.services.publishing.shared import Served, Shared, serving_all
from tests.services.publishing.site import Site, make_publishing
from ulak.auth import passwords
from ulak.services import publishing
from ulak.testing import children

STORES = ("sqlite", "postgres")
WAYS = ("same", "apart")

# Children that are killed are forked from a process that has imported this too. Whoever imported it
# anew would spend a second before the point at which it dies.
children._PRELOADED += [
    "argon2", "cryptography.fernet", "jwt", "uvicorn", "ulak.auth", "ulak.service", "ulak.web",
    *(part.name for part in iter_modules(publishing.__path__, f"{publishing.__name__}.")),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def read_authorities_once() -> Iterator[None]:
    """Read the authorities of TLS once: every client of HTTP would, and none of them needs one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture
def slow_passwords() -> bool:
    """Keep the hashing of passwords as it is, for a test that is about it."""
    return True


@pytest.fixture(autouse=True)
def quick_passwords(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash the passwords of this process quickly; in earnest each takes 64 MiB and a core."""
    if "slow_passwords" not in request.fixturenames:
        quick = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
        monkeypatch.setattr(passwords, "_hasher", lambda: quick)


# --- databases ----------------------------------------------------------------------


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a SQLite database as each of these begins: with all tables, and nothing in them."""
    path = tmp_path_factory.mktemp("template") / "publishing.db"
    make_publishing(f"sqlite:///{path}")
    return path


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a database of the test's own."""
    with ExitStack() as stack:
        yield lend(request, request.param, tmp_path, stack)


def lend(
    request: pytest.FixtureRequest,
    store: str,
    folder: Path,
    stack: ExitStack,
    name: str = "publishing",
) -> str:
    """Return the URL of a new database of a kind, until the stack is closed."""
    if store == "postgres":
        found: str = stack.enter_context(request.getfixturevalue("databases").lend(make_publishing))
        return found
    path = folder / f"{name}.db"
    shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def lend_to_all(
    databases: object, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], str]]:
    """Lend databases to all tests of a module."""
    with ExitStack() as stack:
        yield lambda store: lend(request, store, tmp_path_factory.mktemp("shared"), stack)


# --- one process --------------------------------------------------------------------


@pytest.fixture(scope="module")
def sites(lend_to_all: Callable[[str], str]) -> Iterator[Callable[[str], tuple[Site, Shared]]]:
    """Return the process of a module on a kind of database, and that database."""
    with ExitStack() as stack:

        @cache
        def find(store: str) -> tuple[Site, Shared]:
            site = Site(lend_to_all(store))
            stack.callback(site.engine.close)
            shared = Shared(site.url)
            shared.keep()
            stack.callback(shared.close)
            return site, shared

        yield find


@pytest.fixture(params=STORES)
def site(
    request: pytest.FixtureRequest, sites: Callable[[str], tuple[Site, Shared]]
) -> Iterator[Site]:
    """Return the process of the module, as if it were new."""
    found, shared = sites(request.param)
    yield found
    found.forget()
    shared.end()


@pytest.fixture
def open_site(site: Site) -> Iterator[Callable[..., Site]]:
    """Start another process on the same database; options are settings."""
    made: list[Site] = []

    def start(**settings: object) -> Site:
        made.append(Site(site.url, **settings))
        return made[-1]

    yield start
    for each in made:
        each.engine.close()


# --- a process with workers, and the servers that they call -------------------------


@pytest.fixture(scope="module")
def served(lend_to_all: Callable[[str], str]) -> Iterator[Callable[[str, str], Served]]:
    """Return the servers of a module on a kind of database, the queue beside the posts or apart."""
    with ExitStack() as stack:

        @cache
        def find(store: str, way: str) -> Served:
            urls = [lend_to_all(store) for _ in range(1 + WAYS.index(way))]
            return stack.enter_context(serving_all(*urls))

        yield find


@pytest.fixture(
    params=[
        ("sqlite", "same"), ("postgres", "apart"),
        pytest.param(("sqlite", "apart"), marks=pytest.mark.sampled),
        pytest.param(("postgres", "same"), marks=pytest.mark.sampled),
    ],
    ids="-".join,
)  # fmt: skip
def served_both(request: pytest.FixtureRequest, served: Callable[[str, str], Served]) -> Served:
    """Return servers with the queue beside the posts, and others with it in another database."""
    return served(*request.param)


@pytest.fixture(params=STORES)
def served_beside(request: pytest.FixtureRequest, served: Callable[[str, str], Served]) -> Served:
    """Return servers with the queue beside the posts."""
    return served(request.param, "same")


@pytest.fixture(params=STORES)
def served_apart(request: pytest.FixtureRequest, served: Callable[[str, str], Served]) -> Served:
    """Return servers with the queue in another database."""
    return served(request.param, "apart")


# --- a whole blog -------------------------------------------------------------------


@pytest.fixture
def store() -> str:
    """In which kind of database a whole blog is."""
    return "sqlite"


@pytest.fixture
def way() -> str:
    """Whether the queue of a whole blog is beside the posts, or apart from them."""
    return BESIDE


@pytest.fixture
def variables() -> Mapping[str, str]:
    """The settings of a whole blog."""
    return PLAYED


@pytest.fixture
def orders() -> Mapping[str, Any]:
    """What every part of a whole blog is told besides."""
    return PLAYED_ORDERS


@pytest.fixture
def blog(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    zygote: Zygote,
    store: str,
    way: str,
    variables: Mapping[str, str],
    orders: Mapping[str, Any],
) -> Iterator[Blog]:
    """Every part of publishing as a process of its own, none of them started."""
    names = ("queue", "posts", "users") if way == APART else ("queue",)
    with ExitStack() as stack:
        urls = [lend(request, store, tmp_path, stack, name) for name in names]
        options: Any = {"variables": variables, "zygote": zygote, "orders": orders}
        yield stack.enter_context(Blog(tmp_path, Stores(*urls), **options))
