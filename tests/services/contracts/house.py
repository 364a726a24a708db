"""Contracts behind their routes, asked as a client would ask them."""

import asyncio
import json as codec
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import psycopg

import ulak.web
from tests.conformance.stores import make_schema
from tests.web.discretion import must_be_discreet
from tests.web.people import Known, as_
from ulak.clock import Clock
from ulak.engine.engine import Engine
from ulak.idempotency import Guard
from ulak.service import Service, attach
from ulak.services.contracts import routes
from ulak.services.contracts import service as contracts_service
from ulak.services.contracts.contracts import TRANSITION, Contracts
from ulak.services.contracts.ledger import SCHEMA
from ulak.services.contracts.tables import Versions, versions_in_force
from ulak.settings import Settings
from ulak.store.redis import RedisRecords
from ulak.tables import Tables
from ulak.wiring import store_of

TENANT = "acme"
# Whoever waits for another waits to the end, however slow the machine is today.
PATIENCE = timedelta(seconds=60)


def make_tables(url: str) -> None:
    """What every database of these tests begins with."""
    make_schema(url)
    with Engine(store_of(url)) as engine:
        Tables(engine, SCHEMA).ensure()


class House:
    """One process: an engine on a store, its contracts, and the application that serves them."""

    def __init__(
        self, url: str, *, clock: Clock | None = None, versions: Versions | None = None,
        on_change: Any = None, patience: timedelta = PATIENCE, records: str = "",
    ) -> None:  # fmt: skip
        self.url = url
        scope, guard = replace(TRANSITION, lock_wait=patience), None
        if records:  # the address of a Redis, whose time is that of the clock too
            scope = replace(scope, mode="lease")
            guard = Guard(RedisRecords(records, clock=clock))
        self.engine = Engine(store_of(url, clock=clock))
        self.contracts = Contracts(
            self.engine, versions or versions_in_force({}), on_change=on_change,
            scope=scope, guard=guard,
        )  # fmt: skip
        service = self._service()
        attach(service, self.engine, Settings())
        self.app = ulak.web.app(self.engine, identity=Known(), services=[service])

    def _service(self) -> Service:
        return Service(
            "contracts", attach=lambda *_: None,
            routes=lambda engine, _: routes.routes_of(engine, self.contracts),
            scopes=contracts_service.scopes,
        )  # fmt: skip

    def ask(
        self, method: str, path: str, *, who: str | None = "service", json: Any = None,
        content: bytes | None = None, headers: Any = (),
    ) -> httpx.Response:  # fmt: skip
        """Send one request, without a network between; no answer tells a secret."""
        sent = [*(as_(who).items() if who else ()), *dict(headers).items()]
        if json is not None:
            content = codec.dumps(json).encode()
            sent.append(("Content-Type", "application/json"))

        async def one() -> httpx.Response:
            # What an application raises must come back as an answer, as over a network.
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
                return await client.request(method, path, content=content, headers=sent)

        answer = asyncio.run(one())
        must_be_discreet(
            method, path, sent=(dict(sent), json), status=answer.status_code,
            answer=(answer.headers.multi_items(), answer.content),
        )  # fmt: skip
        return answer

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("GET", path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return self.ask("POST", path, json=json, **options)

    def move(self, key: str | None = None, *, who: str = "service", **members: Any) -> Any:
        """Ask for a transition of the order 1 of the tenant, or of what is said."""
        body = {"tenant_id": TENANT, "subject_ref": {"type": "order", "id": "1"}}
        if key is not None:
            body["idempotency_key"] = key
        if "from_" in members:
            members["from"] = members.pop("from_")
        return self.post("/v1/contract/transition", body | members, who=who)

    def subject(self, type: str = "order", id: str = "1", tenant: str = TENANT) -> Any:
        answer = self.get(f"/v1/contract/subjects/{type}/{id}?tenant_id={tenant}")
        return answer.json() if answer.status_code == 200 else None

    def proofs(self, **filters: Any) -> list[dict[str, Any]]:
        query = "&".join(f"{name}={value}" for name, value in filters.items())
        return self.get(f"/v1/proof?{query}").json()["items"]

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Do something behind the back of everybody."""
        with backdoor(self.url) as (db, schema, mark):
            cursor = db.execute(statement.format(schema=schema).replace("?", mark), values)
            rows = [] if cursor.description is None else cursor.fetchall()
            db.commit()
        return rows

    def close(self) -> None:
        self.engine.close()


@contextmanager
def backdoor(url: str) -> Iterator[tuple[Any, str, str]]:
    """A connection of somebody else's, the schema of the tables, and the mark of a value."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            yield db, "main", "?"
    else:
        with psycopg.connect(url) as db:
            yield db, "ulak", "%s"
