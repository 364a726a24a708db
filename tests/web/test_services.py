"""The routes of services, behind the same guard as ulak's own."""

import threading
from dataclasses import replace

import pytest
from fastapi import APIRouter, WebSocket
from prometheus_client.metrics_core import GaugeMetricFamily

import ulak.web
from ulak.auth.principal import JOBS_READ, JOBS_SUBMIT, VIEWER, AccessScope, Principal
from ulak.errors import FlowError, ServiceError, StoreError, UlakError
from ulak.service import Service, attach
from ulak.settings import Settings
from ulak.web import PUBLIC, Access, Caller, Routes


def service(*routers, access=(), name="letters"):
    return Service(name, attach=lambda *_: None, routes=lambda *_: Routes(routers, access))


def served(engine, *services, identity=None):
    """Return the application of an engine to which services are attached."""
    for each in services:
        attach(each, engine, Settings())
    return ulak.web.app(engine, identity=identity, services=services)


@pytest.fixture
def router():
    made = APIRouter(prefix="/letters")

    @made.get("/papers")
    def papers(principal: Caller) -> dict[str, str]:
        return {"for": principal.name}

    @made.post("")
    def write() -> dict[str, str]:
        return {}

    return made


READ = Access("GET", "/letters/papers", JOBS_READ, "jobs")
WRITE = Access("POST", "/letters", JOBS_SUBMIT, "jobs")


class Known:
    """Everybody is a viewer."""

    def recall(self, credential):
        return Principal(credential, tenant=None, roles=frozenset({VIEWER}))


def test_routes_of_a_service_are_served_and_guarded(engine, ask, router):
    made = service(router, access=[READ, WRITE])
    app = served(engine, made, identity=Known())
    ada = {"Authorization": "Bearer ada"}
    assert ask(app, "/letters/papers", headers=ada).json() == {"for": "ada"}
    assert ask(app, "/letters/papers").status_code == 401
    refused = ask(app, "/letters", method="POST", headers=ada)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert ask(ulak.web.app(engine, identity=None), "/letters/papers").status_code == 404


def test_the_documents_have_the_routes_of_services(engine, ask, router):
    app = served(engine, service(router, access=[READ, WRITE]))
    document = ask(app, "/openapi.json").json()
    assert document["paths"]["/letters/papers"]["get"]["tags"] == ["letters"]
    assert {"name": "letters"} in document["tags"]
    assert "/letters/papers" in ask(app, "/docs").text


def test_a_route_that_nobody_has_thought_about_is_refused(engine, router):
    with pytest.raises(UlakError, match="nobody has said who may call POST /letters"):
        served(engine, service(router, access=[READ]))


def test_a_service_takes_no_route_from_others(engine, router):
    line = Access("GET", "/jobs", JOBS_READ, "jobs")
    with pytest.raises(UlakError, match='"letters" cannot serve GET /jobs'):
        served(engine, service(APIRouter(), access=[line]))
    first = service(router, access=[READ, WRITE])
    second = service(router, access=[READ, WRITE], name="other")
    with pytest.raises(UlakError, match='"other" cannot serve GET /letters/papers'):
        served(engine, first, second)


def test_what_the_guard_would_not_see_is_refused(engine, router):
    @router.websocket("/live")
    async def live(socket: WebSocket) -> None: ...

    with pytest.raises(UlakError, match=r"nobody would guard /letters/live;"):
        served(engine, service(router, access=[READ, WRITE]))


def test_a_route_that_the_guard_would_take_for_another_is_refused(engine):
    inner, outer = APIRouter(), APIRouter(prefix="/letters")

    @inner.get("/health/live")
    def secrets() -> None: ...

    outer.include_router(inner)
    line = Access("GET", "/letters/health/live", JOBS_READ)
    with pytest.raises(UlakError, match="nobody would guard /letters/health/live"):
        served(engine, service(outer, access=[line]))


def test_a_service_without_routes_brings_none(engine, ask):
    app = served(engine, Service("quiet", attach=lambda *_: None))
    assert ask(app, "/health/live").status_code == 200


def test_a_service_adds_metrics_and_one_that_fails_takes_nothing_else_away(engine, ask):
    def letters():
        return [GaugeMetricFamily("letters_waiting", "Letters that wait.", 3)]

    def broken():
        yield GaugeMetricFamily("parcels_waiting", "Parcels that wait.", 1)
        raise StoreError("the table is not there")

    services = [
        Service(
            name, attach=lambda *_, read=read: read, routes=lambda _, read: Routes([], [], read)
        )
        for name, read in (("parcels", broken), ("letters", letters))
    ]
    text = ask(served(engine, *services), "/metrics").text
    assert "letters_waiting 3.0" in text
    assert "parcels_waiting" not in text
    assert "ulak_store_up 1.0" in text


@pytest.mark.shows("E-69")
def test_what_attach_returns_reaches_the_routes_of_the_same_engine(engine):
    reached = []

    def routes(engine, left):
        reached.append((engine, left))
        return Routes([], [])

    left = object()
    made = Service("letters", attach=lambda *_: left, routes=routes)
    with pytest.raises(UlakError, match='"letters" is not attached to this engine; call ulak'):
        ulak.web.app(engine, identity=None, services=[made])
    served(engine, made)
    assert reached == [(engine, left)]


@pytest.mark.shows("E-69")
def test_a_scope_that_nobody_declares_is_refused_at_start(engine, router):
    line = Access("POST", "/letters", "letters:write", "jobs")
    made = service(router, access=[READ, line])
    with pytest.raises(UlakError, match="POST /letters needs the scope 'letters:write', which nob"):
        served(engine, made)
    scope = AccessScope("letters:write", "write letters", roles={VIEWER})
    declared = replace(made, name="others", scopes=[scope])
    app = served(engine, declared)
    assert "to write letters" in app.openapi()["paths"]["/letters"]["post"]["description"]


@pytest.mark.shows("E-69")
def test_a_route_may_take_callers_of_the_platform_by_token_only(engine, ask, router):
    strict = replace(READ, schemes=("Token",))
    loose = replace(WRITE, headers=("X-Acme-Key",), scope=JOBS_READ)
    app = served(engine, service(router, access=[strict, loose]), identity=Known())
    by_token = ask(app, "/letters/papers", headers={"Authorization": "Token ada"})
    assert by_token.json() == {"for": "ada"}
    for headers in ({"Authorization": "Bearer ada"}, {"X-Admin-Key": "ada"}, {"X-Acme-Key": "ada"}):
        refused = ask(app, "/letters/papers", headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Token ")
        assert "Authorization: Token" in refused.json()["detail"]
    by_header = ask(app, "/letters", method="POST", headers={"X-Acme-Key": "ada"})
    assert by_header.status_code == 200
    assert ask(app, "/jobs", headers={"X-Acme-Key": "ada"}).status_code == 401
    document = app.openapi()
    assert document["paths"]["/letters/papers"]["get"]["security"] == [{"token": ["jobs:read"]}]
    assert {"x-acme-key", "token"} <= document["components"]["securitySchemes"].keys()


@pytest.mark.shows("E-69")
def test_an_envelope_adds_and_replaces_members_and_leaves_the_status(engine, ask, router):
    def envelope(document):
        said = {"code": "not_authenticated", "message": document["detail"], "detail": "come in"}
        if wrong := document.get("errors"):
            said = {"errors": [{"field": e["parameter"], "message": "wrong"} for e in wrong]}
        return {"success": False, "status": 200, **said}

    @router.get("/copies")
    def copies(number: int) -> int:
        return number

    lines = [READ, WRITE, Access("GET", "/letters/copies", PUBLIC)]
    routes = Routes([router], lines, envelope=envelope)
    made = Service("letters", attach=lambda *_: None, routes=lambda *_: routes)
    app = served(engine, made, identity=Known())
    answer = ask(app, "/letters/papers")
    told = answer.json()
    assert (answer.status_code, told["status"], told["title"]) == (401, 401, "Unauthorized")
    assert (told["code"], told["detail"], told["success"]) == (
        "not_authenticated",
        "come in",
        False,
    )
    assert told["message"].startswith("send an API key")
    assert answer.headers["www-authenticate"].startswith("Bearer ")
    told = ask(app, "/letters/copies?number=many").json()
    assert (told["code"], told["errors"]) == (
        "bad-input", [{"field": "number", "message": "wrong"}],
    )  # fmt: skip


class Remembering:
    """Knows everybody; whom it has seen it remembers."""

    def __init__(self):
        self.seen, self.asked = {}, []

    def recall(self, credential):
        return self.seen.get(credential)

    def authenticate(self, credential):
        self.asked.append((credential, threading.current_thread() is threading.main_thread()))
        if credential == "nobody":
            return None
        self.seen[credential] = Principal(credential, tenant=None, roles=frozenset({VIEWER}))
        return self.seen[credential]


@pytest.mark.shows("E-69")
def test_an_authenticator_of_a_service_may_remember_and_costs_no_thread_then(engine, ask, router):
    known = Remembering()
    line = replace(READ, authenticate=known, schemes=("Token",))
    app = served(engine, service(router, access=[line, WRITE]))
    ada = {"Authorization": "Token ada"}
    for _ in range(3):
        assert ask(app, "/letters/papers", headers=ada).json() == {"for": "ada"}
    assert known.asked == [("ada", False)]
    with pytest.raises(UlakError, match="GET /letters/papers: authenticate= takes a function"):
        served(engine, service(router, access=[replace(READ, authenticate=object()), WRITE]))
    assert ask(app, "/letters/papers", headers={"Authorization": "Token nobody"}).status_code == 401
    assert ask(app, "/letters/papers").status_code == 401


def test_on_a_public_route_a_credential_may_be_left_out_and_one_that_is_sent_must_be_good(
    engine, ask, router
):
    line = replace(READ, scope=PUBLIC, authenticate=Remembering(), schemes=("Bearer",))
    app = served(engine, service(router, access=[line, WRITE]))
    assert ask(app, "/letters/papers").json() == {"for": ""}
    known = ask(app, "/letters/papers", headers={"Authorization": "Bearer ada"})
    assert known.json() == {"for": "ada"}
    for wrong in ("Bearer nobody", "Token ada", "Bearer "):
        assert ask(app, "/letters/papers", headers={"Authorization": wrong}).status_code == 401
    operation = app.openapi()["paths"]["/letters/papers"]["get"]
    assert operation["security"] == [{}, {"bearer": []}]
    assert "A credential may be left out." in operation["description"]
    assert "401" in operation["responses"]
    assert "403" not in operation["responses"]


@pytest.mark.shows("E-69")
def test_an_error_of_a_service_is_declared_or_refused(engine, ask, router):
    with pytest.raises(FlowError, match="Lost: 200 is no status of an error"):
        type("Lost", (ServiceError,), {"status": 200})
    with pytest.raises(FlowError, match="Lost: 'It is lost' is no code; write words as"):
        type("Lost", (ServiceError,), {"code": "It is lost"})
    with pytest.raises(FlowError, match="ServiceError: every problem has code, status; choose oth"):
        ServiceError("no", status=1, code=2)

    class Lost(ServiceError):
        code, status = "letter-lost", 410

    @router.get("/lost")
    def lost() -> None:
        raise Lost("it is lost", headers="a member", request=[1, None])

    class Odd(ServiceError):
        code, status = "letter-odd", 499  # a number that no standard names

    @router.get("/odd")
    def odd() -> None:
        raise Odd("it is odd")

    lines = [replace(READ, path=f"/letters/{name}") for name in ("lost", "odd")]
    app = served(engine, service(router, access=[READ, WRITE, *lines]))
    assert (ask(app, "/letters/odd").status_code, ask(app, "/letters/odd").json()["code"]) == (
        499, "letter-odd",
    )  # fmt: skip
    answer = ask(app, "/letters/lost")
    told = answer.json()
    assert (answer.status_code, told["title"], told["code"]) == (410, "Gone", "letter-lost")
    assert (told["headers"], told["request"]) == ("a member", [1, None])
    assert "retry-after" not in answer.headers
