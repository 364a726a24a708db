"""Protected routes of a FastAPI application: who may ask and what is valid come first."""

import asyncio
import socket
import threading
import time
from typing import Annotated, Any

import httpx
import pytest
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse

from tests.web.idempotent import RECORD_STORES, Shop, opened, protect, same, scope_of
from ulak.errors import UlakError
from ulak.idempotency import Execution, Guard, current
from ulak.store.records import RecordId
from ulak.web.idempotency import IdempotentRoute, check, idempotent_route
from ulak.web.server import bind

ORDER = {"article": "A-1", "amount": 2}


class Order(BaseModel):
    article: str
    amount: int


def who(x_actor: Annotated[str, Header()] = "") -> tuple[str, str]:
    if not x_actor:
        raise HTTPException(401, "who are you?")
    return "", x_actor


class House:
    """An application that is not ours, and what its handlers did."""

    def __init__(self, store, **options):
        self.guard = Guard(store)
        self.done: list[Any] = []
        self.error: Exception | None = None
        self.after: list[str] = []
        routes = APIRouter(route_class=IdempotentRoute)
        protected = idempotent_route(self.guard, scope_of(store), identify=who, **options)
        protecting = Annotated[Execution | None, Depends(protected)]

        @routes.post("/orders", status_code=201)
        async def create(order: Order, execution: protecting) -> Any:
            self.done.append(execution)
            assert execution is None or current() is execution
            if self.error is not None:
                raise self.error
            return {"number": len(self.done), "article": order.article}

        @routes.post("/plain", dependencies=[Depends(protected)])
        def plain(request: Request) -> Any:
            self.done.append(current())
            return JSONResponse(
                {"number": len(self.done)}, background=BackgroundTask(self.after.append, "sent")
            )

        @routes.post("/stream", dependencies=[Depends(protected)])
        async def stream() -> Any:
            self.done.append(current())
            return StreamingResponse(iter([b"a", b"b", b"c"]), media_type="text/plain")

        @routes.get("/orders")
        def read() -> Any:
            return []

        self.app = FastAPI()
        self.app.include_router(routes)


@pytest.fixture(params=RECORD_STORES)
def store(request, tmp_path):
    with opened(request.param, request, tmp_path) as made:
        yield made


@pytest.fixture
def house(store):
    return House(store)


@pytest.fixture
def post(ask, house):
    def send(key: str | None, path: str = "/orders", actor: str = "ada", **options: Any):
        headers = {"X-Actor": actor} if actor else {}
        if key is not None:
            headers["Idempotency-Key"] = key
        options.setdefault("json", ORDER)
        return ask(options.pop("to", house.app), path, method="POST", headers=headers, **options)

    return send


@pytest.mark.shows("I-2", "I-27", "I-29")
@pytest.mark.parametrize("path", ["/orders", "/plain", "/stream"])
def test_a_route_is_executed_once_and_its_answer_comes_back(post, house, path):
    first, again = post("order-1", path), post("order-1", path)
    assert first.is_success, first.text
    assert same(first, again)
    assert len(house.done) == 1
    assert again.headers["idempotency-key"] == "order-1"
    assert again.headers["content-type"] == first.headers["content-type"]


def test_what_is_done_after_the_answer_does_not_hold_it_up_and_is_not_repeated(post, house):
    post("order-1", "/plain")
    post("order-1", "/plain")
    assert house.after == ["sent"]


def test_other_routes_of_the_class_are_as_any_other(ask, house):
    answer = ask(house.app, "/orders")
    assert (answer.status_code, answer.json()) == (200, [])
    assert "idempotent-replayed" not in answer.headers


@pytest.mark.shows("I-18", "I-29")
def test_who_may_not_ask_and_what_is_not_valid_is_refused_also_when_repeated(post, house, store):
    assert post("order-1").status_code == 201
    stranger = post("order-1", actor="")
    assert (stranger.status_code, stranger.headers["idempotent-replayed"]) == (401, "false")
    assert post(None, actor="").status_code == 401
    bad = post("order-2", json={"article": "A"})
    assert (bad.status_code, bad.headers["idempotent-replayed"]) == (422, "false")
    assert bad.json()["detail"][0]["loc"] == ["body", "amount"]
    assert house.guard.record(RecordId("", "orders.create", "order-2")) is None
    assert post("order-2").status_code == 201
    assert len(house.done) == 2


@pytest.mark.shows("I-1", "I-7", "I-13")
def test_refusals_are_problems_in_an_application_that_is_not_ours_too(post, house):
    missing = post(None)
    assert (missing.status_code, missing.json()["code"]) == (400, "idempotency_key_required")
    assert missing.headers["content-type"] == "application/problem+json"
    post("order-1")
    reused = post("order-1", actor="bob")
    assert (reused.status_code, reused.json()["code"]) == (422, "idempotency_key_reused")
    assert len(house.done) == 1


@pytest.mark.shows("I-17")
def test_a_refusal_that_is_raised_is_an_answer(post, house):
    house.error = HTTPException(409, "sold out")
    first = post("order-1")
    house.error = None
    assert first.status_code == 409
    assert same(first, post("order-1"))
    assert len(house.done) == 1


@pytest.mark.shows("I-19", "I-29")
@pytest.mark.parametrize("error", [RuntimeError("a bug"), HTTPException(503, "later")], ids=repr)
def test_a_failure_takes_everything_back_and_frees_the_key(post, house, error):
    house.error = error
    failed = post("order-1")
    assert failed.status_code >= 500
    assert failed.headers["idempotency-key"] == "order-1"
    assert failed.headers["idempotent-replayed"] == "false"
    house.error = None
    again = post("order-1")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "false")


@pytest.mark.shows("I-29")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_an_application_says_of_its_bugs_is_said_with_the_key(post, house, kind):
    def say(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"mine": str(error)}, 500)

    async def say_async(request: Request, error: Exception) -> JSONResponse:
        return say(request, error)

    house.app.add_exception_handler(Exception, say if kind == "plain" else say_async)
    house.error = RuntimeError("a bug")
    failed = post("order-1")
    assert (failed.status_code, failed.json()) == (500, {"mine": "a bug"})
    assert failed.headers["idempotency-key"] == "order-1"
    assert failed.headers["idempotent-replayed"] == "false"


@pytest.mark.shows("I-27")
def test_without_a_key_an_optional_route_runs_unprotected(post, store):
    house = House(store, policy="optional")
    answers = [post(None, to=house.app) for _ in range(2)]
    assert [answer.json()["number"] for answer in answers] == [1, 2]
    assert house.done == [None, None]
    assert same(post("order-1", to=house.app), post("order-1", to=house.app))
    off = House(store, policy="off")
    answers = [post("order-1", to=off.app) for _ in range(2)]
    assert [answer.json()["number"] for answer in answers] == [1, 2]
    assert "idempotent-replayed" not in answers[0].headers


def test_a_route_of_another_class_is_refused_at_start_and_never_executed(ask, store):
    protected = idempotent_route(Guard(store), scope_of(store), identify=who)
    app, done = FastAPI(), []

    @app.post("/orders", dependencies=[Depends(protected)])
    async def create() -> None:
        done.append(1)

    with pytest.raises(UlakError, match=r"/orders declares idempotent_route.*route_class="):
        check(app)
    headers = {"X-Actor": "ada", "Idempotency-Key": "order-1"}
    assert ask(app, "/orders", method="POST", headers=headers).status_code == 500
    assert done == []


def test_a_handler_that_yields_its_answer_is_refused_at_start(store):
    protected = idempotent_route(Guard(store), scope_of(store), identify=who)
    routes = APIRouter(route_class=IdempotentRoute)

    async def create():
        yield b"a"

    with pytest.raises(UlakError, match="returns its answer"):
        routes.post("/orders", dependencies=[Depends(protected)])(create)


# --- clients that go away ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["middleware", "route"])
def test_a_client_that_hangs_up_does_not_stop_the_execution(store, kind):
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow(Shop):
        async def __call__(self, scope, receive, send):
            begun.set()
            await asyncio.to_thread(goes_on.wait)
            await super().__call__(scope, receive, send)
            ended.set()

    if kind == "middleware":
        app = protect(Slow(), store)
    else:
        app, routes = FastAPI(), APIRouter(route_class=IdempotentRoute)
        protected = idempotent_route(Guard(store), scope_of(store), identify=lambda: ("", "ada"))

        async def parts():
            yield b'{"o'
            await asyncio.to_thread(goes_on.wait)
            yield b'k": true}'
            ended.set()

        @routes.post("/orders", dependencies=[Depends(protected)])
        async def create() -> Any:
            begun.set()
            return StreamingResponse(parts(), media_type="application/json")

        app.include_router(routes)
    body = b'{"article": "A-1"}'
    head = (
        b"POST /orders HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\n"
        b"Idempotency-Key: order-1\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    with Serving(app) as server:
        port = server.port
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head + body)
            assert begun.wait(120)
        server.wait_until_alone()
        goes_on.set()
        assert ended.wait(120)
        answer = httpx.post(
            f"http://127.0.0.1:{port}/orders", content=body,
            headers={"Content-Type": "application/json", "Idempotency-Key": "order-1"},
        )  # fmt: skip
    assert answer.headers["idempotent-replayed"] == "true"
    assert answer.json()["ok"] is True


class Serving:
    """A real server on a thread of its own."""

    def __init__(self, app: Any) -> None:
        self._socket = bind("127.0.0.1", 0)
        self._socket.listen()
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def __enter__(self) -> "Serving":
        self._thread.start()
        self.port = self._socket.getsockname()[1]
        return self

    def wait_until_alone(self) -> None:
        """Wait until the server has heard that everybody has hung up."""
        give_up = time.monotonic() + 20
        while self._server.server_state.connections:
            assert time.monotonic() < give_up
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
