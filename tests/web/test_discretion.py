"""The clients of these tests refuse an answer that tells a secret."""

import asyncio
import json

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from tests.web.asgi import call
from ulak.auth import secrets

KEY = secrets.new_secret()
PASSWORD = "correct horse/battery"  # noqa: S105 - guards nothing


@pytest.fixture
def parrot() -> FastAPI:
    """An application that answers what it is told to, with the status that it is told."""
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def answer(request: Request) -> JSONResponse:
        headers = request.headers
        status, said = int(headers["x-status"]), headers["x-say"]
        return JSONResponse({"said": said}, status)

    return app


@pytest.mark.parametrize(
    ("method", "path", "status", "sent", "said"),
    [
        ("GET", "/jobs", 401, {"Authorization": "Bearer something-of-mine"}, "something-of-mine"),
        ("GET", "/jobs", 403, {"X-Admin-Key": "something-of-mine"}, "so: something-of-mine"),
        ("GET", "/jobs", 500, {"Cookie": "ulak_session=something-of-mine"}, "something-of-mine"),
        ("GET", "/auth/link?code=something-of-mine", 401, {}, "no something-of-mine"),
        ("POST", "/auth/login", 422, {}, PASSWORD),
        ("POST", "/auth/login", 401, {}, PASSWORD.encode().hex()),
        ("GET", "/keys", 200, {}, KEY),
        ("POST", "/keys", 422, {}, KEY),
        ("POST", "/keys/abcdefgh/revoke", 200, {}, KEY),
    ],
    ids=lambda value: value if isinstance(value, str) and "ulak_" not in value else "",
)
def test_an_answer_that_tells_a_secret_is_refused(parrot, ask, method, path, status, sent, said):
    headers = {**sent, "X-Status": str(status), "X-Say": said}
    body = {"password": PASSWORD} if method == "POST" else None
    with pytest.raises(AssertionError, match=str(status)) as refused:
        ask(parrot, path, method=method, headers=headers, json=body)
    assert said not in str(refused.value)
    with pytest.raises(AssertionError, match=str(status)):
        asyncio.run(call(parrot, method, path, headers=headers, json=body))
    headers["X-Say"] = "nothing of the kind"
    assert ask(parrot, path, method=method, headers=headers, json=body).status_code == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/keys", 201), ("POST", "/keys/abcdefgh/rotate", 201), ("POST", "/auth/login", 200)],
)
def test_an_answer_that_hands_a_secret_out_is_not(parrot, ask, method, path, status):
    answer = ask(parrot, path, method=method, headers={"X-Status": str(status), "X-Say": KEY})
    assert json.loads(answer.content) == {"said": KEY}
