"""Databases and servers that many tests share; each test finds them as new."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.databases import way_back
from tests.secrets_watch import WATCH
from tests.services.publishing.plant import Between, Plant, Receiver, serving


class Shared:
    """A database of which everybody who has it open may go on using it when a test has ended.

    Args:
        url: Where it is.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._is_sqlite = url.startswith("sqlite")
        self._path = Path(url.removeprefix("sqlite:///"))
        self._kept: Any = None

    def keep(self) -> None:
        """Keep what there is now: from now on every test finds that, and nothing else."""
        if self._is_sqlite:
            self._kept = sqlite3.connect(":memory:", check_same_thread=False)
            with closing(sqlite3.connect(self._path)) as db:
                db.backup(self._kept)
        else:
            with psycopg.connect(self.url) as db:
                self._kept = way_back(db)

    def end(self) -> None:
        """End a test: look for secrets in what it has left, and go back to what was kept."""
        if self._is_sqlite:
            WATCH.look_at_folder(self._path.parent)
            with closing(sqlite3.connect(self._path)) as db:
                self._kept.backup(db)
        else:
            WATCH.look_at_postgres(self.url)
            with psycopg.connect(self.url) as db:
                db.execute(self._kept)

    def close(self) -> None:
        if self._is_sqlite:
            self._kept.close()


@dataclass(frozen=True, slots=True)
class Served:
    """A backend and a push service that stay, for plants that come and go on their databases."""

    databases: tuple[Shared, ...]
    """That of the posts, and that of the queue where it is another one."""
    backend: Between
    receiver: Receiver
    work_with: tuple[str, str, str]
    """What a plant is told of them: addresses and a key."""

    @contextmanager
    def plant(self, **settings: Any) -> Iterator[Plant]:
        """Open a process of publishing for one test."""
        self.backend.rule = lambda step: None
        self.backend.calls.clear()
        self.receiver.keys.clear()
        plant = Plant(*(each.url for each in self.databases), **settings)
        try:
            plant.backend, plant.receiver = self.backend, self.receiver
            plant.work_with(*self.work_with)
            yield plant
        finally:
            plant.close()
            for each in self.databases:
                each.end()


@contextmanager
def serving_all(*urls: str) -> Iterator[Served]:
    """Serve a backend on these databases, and a push service, for the length of a block."""
    plant = Plant(*urls)
    try:
        with (
            serving(plant.make_backend()) as backend,
            serving(plant.receiver) as push,
            ExitStack() as stack,
        ):
            told = (backend, plant.make_key()[1], push)
            plant.work_with(*told)
            plant.posts_engine.open()
            plant.engine.open()
            databases = tuple(map(Shared, urls))
            for each in databases:
                each.keep()
                stack.callback(each.close)
            yield Served(databases, plant.backend, plant.receiver, told)
    finally:
        plant.close()
