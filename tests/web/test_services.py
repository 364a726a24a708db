"""The routes of services, behind the same guard as ulak's own."""

import pytest
from fastapi import APIRouter, WebSocket
from prometheus_client.metrics_core import GaugeMetricFamily

import ulak.web
from ulak.auth.principal import JOBS_READ, JOBS_SUBMIT, VIEWER, Principal
from ulak.errors import StoreError, UlakError
from ulak.service import Service
from ulak.web import Access, Caller, Routes


def service(*routers, access=(), name="letters"):
    return Service(name, attach=lambda *_: None, routes=lambda engine: Routes(routers, access))


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
    app = ulak.web.app(engine, identity=Known(), services=[made])
    ada = {"Authorization": "Bearer ada"}
    assert ask(app, "/letters/papers", headers=ada).json() == {"for": "ada"}
    assert ask(app, "/letters/papers").status_code == 401
    refused = ask(app, "/letters", method="POST", headers=ada)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert ask(ulak.web.app(engine, identity=None), "/letters/papers").status_code == 404


def test_the_documents_have_the_routes_of_services(engine, ask, router):
    app = ulak.web.app(engine, identity=None, services=[service(router, access=[READ, WRITE])])
    document = ask(app, "/openapi.json").json()
    assert document["paths"]["/letters/papers"]["get"]["tags"] == ["letters"]
    assert {"name": "letters"} in document["tags"]
    assert "/letters/papers" in ask(app, "/docs").text


def test_a_route_that_nobody_has_thought_about_is_refused(engine, router):
    with pytest.raises(UlakError, match="nobody has said who may call POST /letters"):
        ulak.web.app(engine, identity=None, services=[service(router, access=[READ])])


def test_a_service_takes_no_route_from_others(engine, router):
    line = Access("GET", "/jobs", JOBS_READ, "jobs")
    with pytest.raises(UlakError, match='"letters" cannot serve GET /jobs'):
        ulak.web.app(engine, identity=None, services=[service(APIRouter(), access=[line])])
    first = service(router, access=[READ, WRITE])
    second = service(router, access=[READ, WRITE], name="other")
    with pytest.raises(UlakError, match='"other" cannot serve GET /letters/papers'):
        ulak.web.app(engine, identity=None, services=[first, second])


def test_what_the_guard_would_not_see_is_refused(engine, router):
    @router.websocket("/live")
    async def live(socket: WebSocket) -> None: ...

    with pytest.raises(UlakError, match=r"nobody would guard /letters/live;"):
        ulak.web.app(engine, identity=None, services=[service(router, access=[READ, WRITE])])


def test_a_route_that_the_guard_would_take_for_another_is_refused(engine):
    inner, outer = APIRouter(), APIRouter(prefix="/letters")

    @inner.get("/health/live")
    def secrets() -> None: ...

    outer.include_router(inner)
    line = Access("GET", "/letters/health/live", JOBS_READ)
    with pytest.raises(UlakError, match="nobody would guard /letters/health/live"):
        ulak.web.app(engine, identity=None, services=[service(outer, access=[line])])


def test_a_service_without_routes_brings_none(engine, ask):
    app = ulak.web.app(engine, identity=None, services=[Service("quiet", attach=lambda *_: None)])
    assert ask(app, "/health/live").status_code == 200


def test_a_service_adds_metrics_and_one_that_fails_takes_nothing_else_away(engine, ask):
    def letters():
        return [GaugeMetricFamily("letters_waiting", "Letters that wait.", 3)]

    def broken():
        yield GaugeMetricFamily("parcels_waiting", "Parcels that wait.", 1)
        raise StoreError("the table is not there")

    services = [
        Service(name, attach=lambda *_: None, routes=lambda engine, read=read: Routes([], [], read))
        for name, read in (("parcels", broken), ("letters", letters))
    ]
    text = ask(ulak.web.app(engine, identity=None, services=services), "/metrics").text
    assert "letters_waiting 3.0" in text
    assert "parcels_waiting" not in text
    assert "ulak_store_up 1.0" in text
