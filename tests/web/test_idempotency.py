"""The middleware: any ASGI application, one effect per key, and the same answer ever after."""

import asyncio
import json
from datetime import timedelta

import httpx
import pytest

from tests.web.idempotent import RECORD_STORES, Shop, opened, protect, same, scope_of, who
from ulak.errors import StoreError, Unauthenticated
from ulak.idempotency import Guard, current
from ulak.store.records import RecordId
from ulak.web.idempotency import IdempotencyMiddleware, Protection

ORDER = {"article": "A-1", "amount": 2}
CODES = {
    "idempotency_key_required": (400, False), "idempotency_key_invalid": (400, False),
    "idempotency_key_conflict": (400, False), "idempotency_key_reused": (422, False),
    "idempotency_in_progress": (409, True), "idempotency_response_not_stored": (409, False),
    "idempotency_store_unavailable": (503, True),
}  # fmt: skip


@pytest.fixture(params=RECORD_STORES)
def store(request, tmp_path):
    with opened(request.param, request, tmp_path) as made:
        yield made


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
def post(ask, shop, store):
    app = protect(shop, store)

    def send(key=None, *, to=app, path="/orders", method="POST", headers=None, **options):
        said = {} if key is None else {"Idempotency-Key": key}
        if "content" not in options:
            options.setdefault("json", ORDER)
        return ask(to, path, method=method, headers={**said, **(headers or {})}, **options)

    return send


def is_refused(answer, code):
    """Whether an answer is the problem of the specification's table."""
    status, retryable = CODES[code]
    document = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, document["status"]) == (status, status)
    assert (document["code"], document["retryable"]) == (code, retryable)
    assert {"type", "title", "detail"} <= document.keys()
    assert answer.headers["idempotent-replayed"] == "false"
    waits = code in ("idempotency_in_progress", "idempotency_store_unavailable")
    assert ("retry-after" in answer.headers) == waits
    assert not waits or int(answer.headers["retry-after"]) >= 1
    return True


@pytest.mark.shows("I-1")
def test_a_request_without_a_key_is_refused_and_nothing_is_executed_or_stored(post, shop, store):
    assert is_refused(post(), "idempotency_key_required")
    assert is_refused(post(""), "idempotency_key_required")
    assert is_refused(post("   "), "idempotency_key_required")
    assert is_refused(post('""'), "idempotency_key_required")
    assert shop.seen == []


@pytest.mark.shows("I-2", "I-3", "I-29")
def test_a_repeated_request_is_answered_as_the_first_and_not_executed(post, shop):
    shop.headers += [
        (b"location", b"/orders/1"), (b"etag", b'"1"'), (b"set-cookie", b"a=b"),
        (b"date", b"Thu, 01 Jan 2026 00:00:00 GMT"), (b"x-own", b"1"),
    ]  # fmt: skip
    first, again = post("order-1"), post("order-1")
    assert same(first, again)
    assert len(shop.seen) == 1
    assert (first.headers["idempotency-key"], again.headers["idempotency-key"]) == ("order-1",) * 2
    assert (again.headers["location"], again.headers["etag"]) == ("/orders/1", '"1"')
    assert first.headers["set-cookie"] == "a=b"
    assert not {"set-cookie", "date", "x-own"} & again.headers.keys()


@pytest.mark.shows("I-30")
def test_headers_that_a_scope_names_are_replayed_too(ask, shop, store, post):
    shop.headers += [(b"x-own", b"1"), (b"set-cookie", b"a=b")]
    app = protect(shop, store, scope_of(store, headers=("X-Own", "Set-Cookie")))
    post("order-1", to=app)
    again = post("order-1", to=app)
    assert again.headers["x-own"] == "1"
    assert "set-cookie" not in again.headers


@pytest.mark.shows("I-30")
@pytest.mark.parametrize(
    ("status", "media", "chunks"),
    [
        (200, b"text/plain; charset=utf-8", [b"eins, ", "zwölf".encode()]),
        (200, b"application/octet-stream", [b"\x00\xff", b"\xfe" * 1000, b"\x00"]),
        (204, None, [b""]),
        (200, b"text/html", [b""]),
        (303, None, [b""]),
    ],
    ids=["text", "bytes", "204", "empty", "redirect"],
)
def test_any_media_type_and_any_number_of_chunks_comes_back(post, shop, status, media, chunks):
    shop.status, shop.chunks = status, chunks
    shop.headers = [] if media is None else [(b"content-type", media)]
    first, again = post("order-1"), post("order-1")
    assert same(first, again)
    assert again.content == b"".join(chunks)
    assert again.headers.get("content-type") == (None if media is None else media.decode())
    assert len(shop.seen) == 1


@pytest.mark.shows("I-5", "I-28")
def test_a_key_may_be_quoted_or_bare_and_means_the_same(post, shop):
    key = "pazar:proof:status_change:42"
    assert same(post(key), post(f'"{key}"'))
    assert len(shop.seen) == 1
    assert post("x" * 255).status_code == 201
    for bad in ("x" * 256, "two words", '"two words"', "\u00e9t\u00e9".encode("latin-1")):
        assert is_refused(post(bad), "idempotency_key_invalid")
    assert len(shop.seen) == 2


@pytest.mark.shows("I-28")
def test_two_keys_are_refused(ask, shop, store):
    app = protect(shop, store, in_body="idempotency_key")

    async def twice():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            lines = [("Idempotency-Key", "a"), ("Idempotency-Key", "a")]
            return await client.post("/orders", headers=lines, json=ORDER)

    assert is_refused(asyncio.run(twice()), "idempotency_key_conflict")
    differ = {**ORDER, "idempotency_key": "b"}
    assert is_refused(
        ask(app, "/orders", method="POST", headers={"Idempotency-Key": "a"}, json=differ),
        "idempotency_key_conflict",
    )
    assert shop.seen == []
    in_body = ask(app, "/orders", method="POST", json=differ)
    assert in_body.headers["idempotency-key"] == "b"
    both = ask(app, "/orders", method="POST", json=differ, headers={"Idempotency-Key": '"b"'})
    assert same(in_body, both)


@pytest.mark.shows("I-6")
def test_the_same_key_of_another_tenant_or_scope_is_another_record(ask, shop, store, post):
    first = post("order-1")
    other = post("order-1", headers={"X-Tenant": "acme"})
    assert other.json() != first.json()
    elsewhere = protect(shop, store, scope_of(store, "orders.change"))
    assert post("order-1", to=elsewhere).json()["number"] == 3
    assert same(first, post("order-1"))


@pytest.mark.shows("I-7", "I-13", "I-11")
def test_the_same_key_for_something_else_is_refused_and_the_first_stays(post, shop):
    first = post("order-1")
    for other in (
        post("order-1", json={**ORDER, "amount": 3}),
        post("order-1", json={**ORDER, "amount": 2.0}),
        post("order-1", path="/orders?now=1"),
        post("order-1", headers={"X-Actor": "bob"}),
        post("order-1", method="PATCH"),
    ):
        assert is_refused(other, "idempotency_key_reused")
        assert other.headers["idempotency-key"] == "order-1"
    assert same(first, post("order-1"))
    assert len(shop.seen) == 1


@pytest.mark.shows("I-11", "I-12")
def test_what_asks_for_the_same_is_the_same_request(post, shop):
    first = post("order-1", path="/orders?a=1&b=2", json={"a": 1, "b": [1, 2], "attempt": 1})
    text = b'{ "b": [1,2],\n "a": 1, "attempt": 7, "request_id": "r-9", "sent_at": "now" }'
    again = post(
        "order-1", path="/orders?b=2&a=1", content=text,
        headers={
            "Content-Type": "application/json", "User-Agent": "other", "Traceparent": "00-1",
            "Authorization": "Bearer another", "Date": "Thu, 01 Jan 2026 00:00:00 GMT",
        },
    )  # fmt: skip
    assert same(first, again)
    assert len(shop.seen) == 1


@pytest.mark.shows("I-15")
def test_other_bodies_count_by_their_bytes_and_media_type(post, shop):
    text = {"Content-Type": "text/plain"}
    first = post("order-1", content=b'{"a": 1}', headers=text)
    assert same(first, post("order-1", content=b'{"a": 1}', headers=text))
    spaced = post("order-1", content=b'{"a":1}', headers=text)
    assert is_refused(spaced, "idempotency_key_reused")
    typed = post("order-1", content=b'{"a": 1}', headers={"Content-Type": "text/csv"})
    assert is_refused(typed, "idempotency_key_reused")


@pytest.mark.shows("I-14")
def test_a_route_says_what_counts(ask, shop, store, post):
    some = protect(shop, store, scope_of(store, fingerprint_fields=("article",)))
    assert same(post("order-1", to=some), post("order-1", to=some, json={**ORDER, "amount": 9}))
    own = protect(
        shop, store, scope_of(store, "own"),
        fingerprint=lambda asked: json.loads(asked.body)["article"] + asked.actor,
    )  # fmt: skip
    assert same(post("order-2", to=own), post("order-2", to=own, json={**ORDER, "amount": 9}))
    other = post("order-2", to=own, json={**ORDER, "article": "B"})
    assert is_refused(other, "idempotency_key_reused")


@pytest.mark.shows("I-8")
def test_a_duplicate_of_what_is_being_executed_is_409_and_never_a_second_execution(store):
    app_goes_on = asyncio.Event()

    class Slow(Shop):
        async def __call__(self, scope, receive, send):
            await super().__call__(scope, receive, self.hold(send))

        def hold(self, send):
            async def held(message):
                await app_goes_on.wait()
                await send(message)

            return held

    slow = Slow()
    quick = scope_of(store, lock_wait=timedelta(milliseconds=50))

    async def both():
        # Two of them, as two processes on one store: what one knows helps the other nothing.
        apps = [protect(slow, store, quick) for _ in range(2)]
        clients = [
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
            for app in apps
        ]
        headers = {"Idempotency-Key": "order-1"}
        first = asyncio.create_task(clients[0].post("/orders", json=ORDER, headers=headers))
        while not slow.seen:
            await asyncio.sleep(0.001)
        duplicates = [await c.post("/orders", json=ORDER, headers=headers) for c in clients]
        app_goes_on.set()
        answers = (
            await first,
            *duplicates,
            await clients[1].post("/orders", json=ORDER, headers=headers),
        )
        for client in clients:
            await client.aclose()
        return answers

    first, *duplicates, later = asyncio.run(both())
    for duplicate in duplicates:
        assert is_refused(duplicate, "idempotency_in_progress")
    assert same(first, later)
    assert len(slow.seen) == 1


@pytest.mark.shows("I-33")
@pytest.mark.parametrize("says", ["caller", "route"])
def test_a_duplicate_that_would_wait_is_answered_with_the_first_answer(store, says):
    waits = timedelta(seconds=20) if says == "route" else timedelta()
    headers = {"Idempotency-Key": "order-1"}
    prefer = {"Prefer": "wait=20"} if says == "caller" else {}
    begun, goes_on = asyncio.Event(), asyncio.Event()

    class Slow(Shop):
        async def __call__(self, scope, receive, send):
            begun.set()
            await goes_on.wait()
            await super().__call__(scope, receive, send)

    slow = Slow()
    quick = scope_of(store, lock_wait=timedelta(milliseconds=20))

    async def both():
        transport = httpx.ASGITransport(protect(slow, store, quick, wait=waits))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            first = asyncio.create_task(client.post("/orders", json=ORDER, headers=headers))
            await begun.wait()
            second = asyncio.create_task(
                client.post("/orders", json=ORDER, headers={**headers, **prefer})
            )
            # Longer than it would wait without.
            done, _ = await asyncio.wait((second,), timeout=0.2)
            assert not done
            goes_on.set()
            return await first, await second

    assert same(*asyncio.run(both()))
    assert len(slow.seen) == 1


@pytest.mark.shows("I-9")
def test_without_the_store_nothing_is_executed(post, shop, store, monkeypatch):
    def fail(*_args, **_options):
        raise StoreError("the disk is gone")

    for verb in ("find_records", "claim_record", "begin"):
        monkeypatch.setattr(store, verb, fail, raising=False)
    assert is_refused(post("order-1"), "idempotency_store_unavailable")
    assert shop.seen == []


@pytest.mark.shows("I-16", "I-17")
@pytest.mark.parametrize("status", [200, 201, 202, 204, 303, 402, 409, 410, 422])
def test_what_was_decided_is_stored(post, shop, status):
    shop.status, shop.chunks = status, [b'{"ok": false}' if status >= 400 else b""]
    assert same(post("order-1"), post("order-1"))
    assert len(shop.seen) == 1


@pytest.mark.shows("I-18", "I-19")
@pytest.mark.parametrize(
    "status", [400, 401, 403, 404, 405, 413, 415, 408, 425, 429, 500, 502, 503, 504]
)
def test_what_was_not_decided_leaves_the_key_free(post, shop, status):
    shop.status = status
    first = post("order-1")
    assert (first.status_code, first.headers["idempotent-replayed"]) == (status, "false")
    shop.status = 201
    again = post("order-1", json={**ORDER, "amount": 3})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "false")
    assert len(shop.seen) == 2


@pytest.mark.shows("I-19")
@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_a_scope_may_store_errors_too(post, shop, store, status):
    app = protect(shop, store, scope_of(store, cache_errors=True))
    shop.status = status
    assert same(post("order-1", to=app), post("order-1", to=app))
    assert len(shop.seen) == 1


@pytest.mark.shows("I-19", "I-29")
def test_an_exception_goes_on_and_leaves_the_key_free(post, shop):
    shop.error = RuntimeError("a bug")
    failed = post("order-1")
    assert (failed.status_code, failed.headers["idempotency-key"]) == (500, "order-1")
    assert failed.headers["idempotent-replayed"] == "false"
    shop.error = None
    assert post("order-1", json={**ORDER, "amount": 3}).status_code == 201


@pytest.mark.shows("I-31")
def test_an_answer_that_is_too_large_is_sent_and_only_its_digest_kept(post, shop, store):
    app = protect(shop, store, scope_of(store, max_body_bytes=1000))
    shop.chunks = [b"x" * 600, b"y" * 600]
    first = post("order-1", to=app)
    assert (first.status_code, first.content) == (201, b"x" * 600 + b"y" * 600)
    again = post("order-1", to=app)
    assert is_refused(again, "idempotency_response_not_stored")
    assert len(shop.seen) == 1


@pytest.mark.shows("I-4")
def test_a_restart_changes_nothing(request, tmp_path, post, shop, store):
    if not store.features.durable:
        pytest.skip("it forgets everything with the process, which production refuses")
    first = post("order-1")
    store.close()
    store.open()
    assert same(first, post("order-1", to=protect(shop, store)))
    assert len(shop.seen) == 1


@pytest.mark.shows("I-27")
def test_each_route_has_its_policy_and_only_its_methods_are_protected(ask, shop, store):
    scope = scope_of(store)
    app = IdempotencyMiddleware(
        shop, Guard(store), identify=who,
        routes=[
            Protection("/hooks/{name}", scope, policy="off"),
            Protection("/drafts/{id}", scope, policy="optional"),
            Protection("/reports", scope, methods=("PUT",)),
            Protection("/{rest:path}", scope),
        ],
    )  # fmt: skip

    def status(method, path, key=None):
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = ask(app, path, method=method, json=ORDER, headers=headers)
        return answer.status_code, answer.headers.get("idempotent-replayed")

    assert status("POST", "/hooks/crm") == (201, None)
    assert status("GET", "/orders") == (201, None)
    assert status("PUT", "/orders") == (201, None)
    assert status("PUT", "/reports") == (400, "false")
    assert status("PATCH", "/orders/1") == (400, "false")
    assert status("POST", "/drafts/1") == (201, "false")
    assert status("POST", "/drafts/1", "d-1") == (201, "false")
    assert status("POST", "/drafts/1", "d-1") == (201, "true")
    assert shop.executions[-2] is None
    assert shop.executions[-1].row.key == "d-1"


def test_whoever_may_not_ask_is_refused_before_anything_is_told(ask, shop, store):
    def nobody(scope):
        raise Unauthenticated("who are you?", reason="missing")

    line = Protection("/orders", scope_of(store))
    guard = Guard(store)
    known = IdempotencyMiddleware(shop, guard, routes=[line], identify=who)
    unknown = IdempotencyMiddleware(shop, guard, routes=[line], identify=nobody)
    headers = {"Idempotency-Key": "order-1"}
    assert ask(known, "/orders", method="POST", json=ORDER, headers=headers).status_code == 201
    refused = ask(unknown, "/orders", method="POST", json=ORDER, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
    assert refused.headers["idempotent-replayed"] == "false"


def test_a_body_that_is_too_large_is_refused(post, shop):
    assert post("order-1", content=b" " * (8 * 1024 * 1024 + 1)).status_code == 413
    assert shop.seen == []


def test_rows_that_are_written_with_the_execution_are_one_commit_with_the_record(
    ask, request, tmp_path
):
    with opened("sqlite", request, tmp_path) as store:
        outcome = iter([409, 500, 201])

        async def shop(scope, receive, send):
            status = next(outcome)
            execution = scope["ulak.idempotency"]
            assert current() is execution
            execution.connection.execute("CREATE TABLE IF NOT EXISTS orders (status INTEGER)")
            execution.connection.execute("INSERT INTO orders VALUES (?)", (status,))
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})

        app = protect(shop, store)
        keys = ("refused", "failed", "done")
        for key in keys:
            ask(app, "/orders", method="POST", json=ORDER, headers={"Idempotency-Key": key})
        rows = store._read(lambda db: db.rows("SELECT * FROM orders"))
        assert rows == [(201,)]
        guard = Guard(store)
        assert [guard.record(RecordId("", "orders.create", key)) is not None for key in keys] == [
            True, False, True,
        ]  # fmt: skip
