"""The log: whose request a line belongs to, and that no line has a secret."""

import io
import json
import logging
import string
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ulak
import ulak.web
from ulak.auth.principal import ADMIN, CURRENT_REQUEST, Principal
from ulak.errors import Unauthenticated
from ulak.kit.processes import logs
from ulak.kit.processes.logs import Hiding
from ulak.settings import Settings

KEY = "ulak_ab3de5gh_" + "Zx9" * 16 + "q"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJlLW9mLWFkYQ"  # noqa: S105 - nobody's
FORMATTERS = {"lines": logs.Lines, "json": logs.JsonLines}


@contextmanager
def logging_to(env: str, secrets: Any = ()) -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger that nobody else knows, whose handler is guarded as those of a process are."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(FORMATTERS[env]())
    handler.addFilter(logs.Hidden(Hiding(secrets)))
    logger = logging.Logger("tests.logs")
    logger.addHandler(handler)
    yield logger, stream


def _unguard() -> None:
    for handler in logs._handlers():
        for found in [f for f in handler.filters if isinstance(f, logs.Hidden)]:
            handler.removeFilter(found)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"key {KEY} was used", "key ulak_ab3de5gh_*** was used"),
        (f"token {TOKEN}.", "token ***"),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("{'x-admin-key': 'hunter22', 'a': 'b'}", "{'x-admin-key': '***', 'a': 'b'}"),
        ("[(b'authorization', b'Token a b'), 1]", "[(b'authorization', b'***'), 1]"),
        ("X-HOS-API-KEY=abc", "X-HOS-API-KEY=***"),
        ("cookie: ulak_session=abc; a=b", "cookie: ***"),
        ("postgresql://ada:p@ss@host/db failed", "postgresql://ada:***@host/db failed"),
        ("host=h password=hunter2 user=ada", "host=h password=*** user=ada"),
        ("password='two words' user=ada", "password=*** user=ada"),
        ('{"password": "x", "name": "ada"}', '{"password": "***", "name": "ada"}'),
        ("ULAK_SECRET=abc", "ULAK_SECRET=***"),
        ("GET http://h/auth/link?code=abc&x=1 200", "GET http://h/auth/link?*** 200"),
        ("job 01J8Z moved to done in queue default", "job 01J8Z moved to done in queue default"),
        ("http://127.0.0.1:8000/jobs", "http://127.0.0.1:8000/jobs"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_hidden_and_nothing_else(said: str, shown: str) -> None:
    hiding = Hiding()
    assert hiding.text(said) == shown
    assert hiding.text(shown) == shown, "hidden twice is hidden once"


def test_facts_with_secret_names_are_hidden_and_others_stay_what_they_are() -> None:
    hiding = Hiding()
    facts = {"Authorization": b"x", "db_password": "y", "job_id": "01J8Z", "token": 7, "n": None}
    assert hiding.fact("headers", facts) == {
        "Authorization": "***", "db_password": "***", "job_id": "01J8Z", "token": 7, "n": None,
    }  # fmt: skip
    loop: list[Any] = [KEY]
    loop.append(loop)
    assert KEY not in str(hiding.fact("loop", loop))


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("env", FORMATTERS)
def test_a_line_that_cannot_be_printed_is_still_a_line(env: str) -> None:
    with logging_to(env) as (logger, stream):
        logger.info("%d jobs", "three", extra={"thing": Unprintable()})
    assert "%d jobs (its arguments do not fit)" in stream.getvalue()
    assert "(Unprintable cannot be printed)" in stream.getvalue()


@pytest.mark.plants_secrets
def test_formatters_that_read_the_arguments_still_find_them() -> None:
    from uvicorn.logging import AccessFormatter

    with logging_to("lines") as (logger, stream):
        logger.handlers[0].setFormatter(AccessFormatter("%(request_line)s %(status_code)s"))
        arguments = ("127.0.0.1:1", "GET", f"/auth/link?code={KEY}", "1.1", 303)
        logger.info('%s - "%s %s HTTP/%s" %d', *arguments)
    assert "GET /auth/link?*** HTTP/1.1 303" in stream.getvalue()


def test_every_handler_of_a_process_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn"), "level", logging.NOTSET)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(handler)
    try:
        logs.start("production", ["a-literal-secret"])
        logs.start("production", ["a-literal-secret"])
        assert [type(f) for f in handler.filters] == [logs.Hidden]
        assert all(
            any(isinstance(f, logs.Hidden) for f in h.filters) for h in logging.getLogger().handlers
        )
        logger.warning("said a-literal-secret")
    finally:
        logger.removeHandler(handler)
        _unguard()
    assert stream.getvalue() == "said ***\n"


def test_the_secrets_of_settings_and_store_are_hidden_wherever_they_stand() -> None:
    engine = ulak.connect("postgresql://ada:open%20sesame@host/db")
    found = Settings(secret="s3cr3t" * 6, admin_key="a-key-of-my-own" * 3)
    hiding = Hiding(logs.secrets_of(found, engine))
    assert hiding.text("it said open sesame, or open%20sesame") == "it said ***, or ***"
    assert hiding.text(f"and {found.secret} and {found.admin_key}") == "and *** and ***"


# --- any secret, anywhere -----------------------------------------------------------

TOKEN_LETTERS = string.ascii_letters + string.digits + "_-"
letters = st.text(string.ascii_letters + string.digits, min_size=43, max_size=49)
keys = st.builds(lambda s: f"ulak_ab3de5gh_{s}", letters)
jwts = st.lists(st.text(TOKEN_LETTERS, min_size=8), min_size=3, max_size=3).map(
    lambda parts: "eyJ" + ".".join(parts)
)
literals = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=8, max_size=60
).filter(lambda s: len(s.strip()) >= 8)
tokens = st.text(TOKEN_LETTERS, min_size=8)


def in_message(logger: logging.Logger, secret: str) -> None:
    logger.info("before " + secret + " after")  # noqa: G003 - as careless as a program can be


def in_argument(logger: logging.Logger, secret: str) -> None:
    logger.info("before %s after", secret)


def in_repr(logger: logging.Logger, secret: str) -> None:
    logger.info("before %r after", {"thing": [secret]})


def in_two_arguments(logger: logging.Logger, secret: str) -> None:
    logger.info("before %s%s after", secret[:5], secret[5:])


def in_facts(logger: logging.Logger, secret: str) -> None:
    logger.info("said", extra={"thing": {"a": [("b", secret)], secret: 1}})


def in_an_object(logger: logging.Logger, secret: str) -> None:
    logger.info("said", extra={"thing": ValueError(secret)})


def in_a_url(logger: logging.Logger, secret: str) -> None:
    logger.info("asked http://host/path?x=%s", quote(secret))


def in_an_error(logger: logging.Logger, secret: str) -> None:
    try:
        try:
            raise ValueError(secret)
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError:
        logger.exception("failed")


def in_the_stack(logger: logging.Logger, secret: str) -> None:
    record = logger.makeRecord("n", logging.INFO, "f", 1, "said", (), None, sinfo=f"at {secret}")
    logger.handle(record)


PLACES: list[Callable[[logging.Logger, str], None]] = [
    in_message, in_argument, in_repr, in_two_arguments, in_facts, in_an_object, in_a_url,
    in_an_error, in_the_stack,
]  # fmt: skip


def written(env: str, place: Callable[[logging.Logger, str], None], secret: str, told: Any) -> str:
    with logging_to(env, told) as (logger, stream):
        place(logger, secret)
        line = stream.getvalue()
    assert line
    # As whoever reads the document sees it, too.
    return line + (str(json.loads(line)) if env == "json" else "")


@pytest.mark.plants_secrets
@settings(max_examples=50)
@pytest.mark.parametrize("env", FORMATTERS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@given(secret=literals)
def test_a_secret_that_is_known_never_comes_out(
    env: str, place: Callable[[logging.Logger, str], None], secret: str
) -> None:
    assume(secret not in written(env, place, "harmless-words", ()))
    found = written(env, place, secret, (secret,))
    assert secret not in found
    assert quote(secret) not in found


@pytest.mark.plants_secrets
@settings(max_examples=50)
@pytest.mark.parametrize("env", FORMATTERS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@given(secret=keys | jwts)
def test_what_has_the_form_of_a_key_or_a_token_never_comes_out(
    env: str, place: Callable[[logging.Logger, str], None], secret: str
) -> None:
    found = written(env, place, secret, ())
    assert secret not in found
    assert secret[20:] not in found


@pytest.mark.plants_secrets
@pytest.mark.parametrize("env", FORMATTERS)
@given(secret=tokens, header=st.sampled_from(["Authorization", "X-Admin-Key", "x-hos-api-key"]))
def test_what_a_caller_shows_never_comes_out(env: str, header: str, secret: str) -> None:
    words = "authorization x-admin-key x-hos-api-key postgresql://"
    assume(secret not in words)
    with logging_to(env) as (logger, stream):
        logger.info("%s: Bearer %s", header, secret)
        logger.info("headers %s", {header: secret})
        logger.info("headers %s", [(header.lower().encode(), f"Token {secret}".encode())])
        logger.info("said", extra={"headers": {header: secret}})
        logger.info("postgresql://ada:%s@host/db", secret)
    assert secret not in stream.getvalue()


# --- whose request a line belongs to ------------------------------------------------


class Known:
    """Knows one caller."""

    def recall(self, credential: str) -> Principal | None:
        return None

    def authenticate(self, credential: str) -> Principal:
        if credential != "good":
            raise Unauthenticated("no", reason="unknown")
        return Principal("key:robot", tenant=None, roles=frozenset({ADMIN}))


def test_each_line_of_a_request_has_its_id_and_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    engine = ulak.connect("memory://")
    with logging_to("json") as (logger, stream), engine:
        real = engine.jobs

        def say(*arguments: Any, **options: Any) -> Any:
            logger.info("reads")
            return real(*arguments, **options)

        monkeypatch.setattr(engine, "jobs", say)
        app = ulak.web.app(engine, identity=Known())

        async def ask_many() -> None:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
                await asyncio.gather(
                    *(
                        client.get(
                            "/jobs",
                            headers={"X-Correlation-ID": f"r{n}", "Authorization": "Bearer good"},
                        )
                        for n in range(5)
                    )
                )

        asyncio.run(ask_many())
        logger.info("alone")
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert sorted((x.get("correlation_id"), x.get("principal")) for x in lines[:-1]) == [
        (f"r{n}", "key:robot") for n in range(5)
    ]
    assert "correlation_id" not in lines[-1]
    assert CURRENT_REQUEST.get() is None


@pytest.mark.plants_secrets
def test_a_request_that_fails_is_still_known_to_whoever_logs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import asyncio

    engine = ulak.connect("memory://")

    def fail(*_arguments: Any, **_options: Any) -> None:
        raise RuntimeError(f"with {KEY}")

    monkeypatch.setattr(engine, "jobs", fail)
    app = ulak.web.app(engine, identity=None)

    async def ask_and_log(logger: logging.Logger) -> None:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://ulak"
        ) as client:
            try:
                await client.get("/jobs", headers={"X-Correlation-ID": "r1"})
            except RuntimeError:
                logger.exception("as uvicorn does")

    with logging_to("json") as (logger, stream):
        asyncio.run(ask_and_log(logger))
        line = json.loads(stream.getvalue())
    assert line["correlation_id"] == "r1"
    assert "ulak_ab3de5gh_***" in line["stack"]
    assert KEY not in stream.getvalue()
