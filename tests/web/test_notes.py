"""Why somebody acts: one kind of note for every act, and a body of nothing else can be left out."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import ulak.web
from ulak.auth.identity import Identity
from ulak.web.openapi import operations_of
from ulak.web.schemas import A_JOB, LONGEST_NOTE

SECRET = "a secret of tests that is long enough"  # noqa: S105 - guards nothing


class House:
    """An application with every route, and an admin who asks for what is not there."""

    def __init__(self, engine: ulak.Engine, ask: Any) -> None:
        identity = Identity(engine.open().store, secret=SECRET)
        key = identity.create_key("root", roles=["admin"], actor="test").text
        self.app = ulak.web.app(engine, identity=identity)
        self.schemas = self.app.openapi()["components"]["schemas"]
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._ask = ask

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        where = path.format(
            id=A_JOB, name="nobody", kind="queue", flow="none", state="none", tenant="none"
        )
        return self._ask(self.app, where, method=method, headers=self._headers, **options)

    def bodies(self) -> Iterator[tuple[str, str, bool, dict[str, Any]]]:
        """Method and path, whether a body must be sent, and the fields that it has."""
        for path, method, operation in operations_of(self.app.openapi()):
            if "requestBody" in operation:
                body = operation["requestBody"]
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                required = body.get("required", False)
                yield method, path, required, self.schemas[name]["properties"]


@pytest.fixture
def house(engine, ask) -> House:
    return House(engine, ask)


def test_a_note_is_as_long_as_any_other_and_can_be_kept(house):
    taken = [(method, path) for method, path, _, fields in house.bodies() if "note" in fields]
    assert len(taken) > 20
    for method, path in taken:
        for note, why in (("x" * (LONGEST_NOTE + 1), "4000 characters"), ("\x00", "NUL")):
            answer = house.ask(method, path, json={"note": note})
            (said,) = [e for e in answer.json()["errors"] if e["parameter"] == "note"]
            assert why in said["message"], path
        answer = house.ask(method, path, json={"note": "x" * LONGEST_NOTE})
        assert "note" not in [e["parameter"] for e in answer.json().get("errors", [])], path


def test_an_act_that_takes_nothing_but_a_note_takes_nothing_too(house):
    bare = [
        (m, p, required) for m, p, required, fields in house.bodies() if set(fields) == {"note"}
    ]
    assert len(bare) == 10
    for method, path, required in bare:
        assert not required, path
        # Nothing of that name is there; what was sent could be read.
        for body in ({}, {"json": {}}, {"json": {"note": "why"}}):
            assert house.ask(method, path, **body).status_code == 404, (path, body)
        for sent in (b"null", b"[]", b'{"notes": "why"}', b'{"note": 7}'):
            assert house.ask(method, path, content=sent).status_code == 422, (path, sent)
