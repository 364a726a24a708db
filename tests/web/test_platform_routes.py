"""An application without the platform's own routes serves its services, and how it stands."""

import pytest

import ulak.web
from tests.web.people import Known, as_
from ulak import wiring
from ulak.auth import VIEWER, Principal
from ulak.errors import UlakError
from ulak.service import Service, attach
from ulak.settings import Settings
from ulak.web import KNOWN, PUBLIC, Access, Routes, guarded_router
from ulak.web.access import ACCESS, ALWAYS


def make_routes(*_):
    router = guarded_router()

    @router.get("/jobs")
    def jobs() -> list[str]:
        """Read a service's own jobs."""
        return ["its own"]

    return Routes([router], [Access("GET", "/jobs", KNOWN, schemes=("Bearer",))])


LETTERS = Service("letters", attach=lambda *_: None, routes=make_routes)


@pytest.fixture
def app(engine):
    attach(LETTERS, engine, Settings())
    return ulak.web.app(engine, identity=Known(), services=[LETTERS], platform_routes=False)


def test_only_what_every_application_has_is_served_beside_the_services(ask, app):
    assert ask(app, "/jobs", headers=as_("viewer")).json() == ["its own"]
    assert set(app.openapi()["paths"]) == {*ALWAYS, "/jobs"}
    for method, path in ACCESS:
        if path not in ALWAYS and path != "/jobs":
            assert ask(app, path.replace(":path", ""), method=method).status_code == 404, path


def test_what_is_left_is_guarded_as_before_and_takes_authorization_alone(ask, app):
    for path in ("/health", "/health/live", "/health/ready"):
        assert ask(app, path).status_code == 200
    for path in ("/metrics", "/openapi.json", "/docs"):
        assert ask(app, path).status_code == 401
        assert ask(app, path, headers={"X-Admin-Key": "admin"}).status_code == 401
        assert ask(app, path, headers=as_("viewer")).status_code == 200
        assert ask(app, path, headers={"Authorization": "Token viewer"}).status_code == 200


def test_a_service_decides_about_the_parameters_of_a_path_that_is_the_platforms_elsewhere(ask, app):
    assert ask(app, "/jobs?odd=1", headers=as_("viewer")).status_code == 200
    assert ask(app, "/docs?odd=1", headers=as_("viewer")).status_code == 422


def test_the_document_is_about_the_services(ask, app):
    document = ask(app, "/openapi.json", headers=as_("viewer")).json()
    assert document["info"]["title"] == "letters"
    assert "Durable jobs" not in document["info"]["description"]
    assert list(document["components"]["securitySchemes"]) == ["bearer", "token"]


def test_the_default_has_everything(engine, ask):
    ada = Principal("ada", tenant=None, roles=frozenset({VIEWER}))
    app = ulak.web.app(engine, identity=Known(ada))
    assert {line.path for line in ACCESS.values()} >= ALWAYS
    assert ask(app, "/").json()["name"] == "ulak"
    assert ask(app, "/jobs", headers=as_("ada")).json()["items"] == []


def test_paths_of_its_own_are_served_and_no_others_so_a_service_may_have_the_rest(
    engine, ask, tmp_path
):
    def make_probe(*_):
        router = guarded_router()

        @router.get("/health")
        def health() -> dict[str, str]:
            """Tell how the service is."""
            return {"service": "letters"}

        return Routes([router], [Access("GET", "/health", PUBLIC)])

    letters = Service("letters", attach=lambda *_: None, routes=make_probe)
    attach(letters, engine, Settings())
    chosen = ["/auth/login", "/auth/me", "/health/ready"]
    identity = wiring.identity_of(engine, Settings(data=tmp_path))
    app = ulak.web.app(engine, identity=identity, services=[letters], platform_routes=chosen)
    assert ask(app, "/health").json() == {"service": "letters"}
    assert ask(app, "/health/ready").status_code == 200
    identity.create_user("ada", "a long password", roles=[VIEWER], actor="a test")
    sent = {"name": "ada", "password": "a long password"}
    token = ask(app, "/auth/login", method="POST", json=sent).json()["token"]
    assert ask(app, "/auth/me", headers=as_(token)).json()["name"] == "ada"
    # Nobody logs a browser in there, so no other site could use its cookie.
    assert ask(app, "/auth/me", headers={"Cookie": f"ulak_session={token}"}).status_code == 401
    for method, path in ACCESS:
        if path not in (*chosen, "/health"):
            assert ask(app, path.replace(":path", ""), method=method).status_code == 404, path


def test_a_path_that_ulak_does_not_have_is_named(engine):
    with pytest.raises(UlakError, match=r"ulak has no route /auth/verify"):
        ulak.web.app(engine, identity=None, platform_routes=["/auth/me", "/auth/verify"])
