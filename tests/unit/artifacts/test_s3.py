"""Artifacts in a bucket: links, damage, settings, and servers that are down, slow or unwilling.

The server is an emulator, moto's, in a process of its own; what only a real one does (checking
signatures, for one) is played by a server of ten lines.
"""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import httpx
import obstore
import pytest
from obstore.store import S3Store

from tests.unit.artifacts.conftest import SECRET
from tests.unit.artifacts.s3_server import A_PAGE, BUCKET, Emulator, emulator
from ulak.artifacts import S3Settings, S3Storage
from ulak.errors import (
    ArtifactUnreadable,
    ArtifactWriteFailed,
    BadInput,
    NotSupported,
)

PDF = "application/pdf"
KEY = "pdfs/4711/report.pdf"
DATA = b"%PDF-1.7\n" + bytes(range(256)) * 40 + b"\n%%EOF\n"


@pytest.fixture
def storage(s3_settings: S3Settings) -> S3Storage:
    return S3Storage(s3_settings)


@pytest.fixture
def bucket(s3: Emulator, s3_settings: S3Settings) -> S3Store:
    """What is in the bucket, for who goes behind our back."""
    return S3Store(
        BUCKET,
        prefix=s3_settings.prefix,
        endpoint=s3.url,
        region="us-east-1",
        access_key_id="AKIDOTHER",
        secret_access_key="another-secret-of-tests",  # noqa: S106 - moto takes any
        client_options={"allow_http": True},
    )


def every_call(storage: S3Storage) -> dict[str, Callable[[], object]]:
    return {
        "put": lambda: storage.put_bytes(KEY, DATA, PDF),
        "get": lambda: storage.get_bytes(KEY),
        "stat": lambda: storage.stat(KEY),
        "exists": lambda: storage.exists(KEY),
        "delete": lambda: storage.delete(KEY),
        "list": lambda: list(storage.list()),
        "check": storage.check,
    }


WRITES = {"put", "delete"}
CALLS = ["put", "get", "stat", "exists", "delete", "list", "check"]


# --- what lies in the bucket --------------------------------------------------------------


@pytest.mark.shows("P-58")
def test_an_object_is_the_very_bytes_with_its_digest_and_what_a_browser_is_told(
    storage: S3Storage,
) -> None:
    storage.put_bytes(KEY, DATA, PDF, filename="4711.pdf")
    found = httpx.get(str(storage.get_presigned_url(KEY)))
    assert found.content == DATA
    assert found.headers["x-amz-meta-sha256"] == storage.stat(KEY).sha256
    assert found.headers["content-type"] == PDF
    assert found.headers["content-disposition"] == 'attachment; filename="4711.pdf"'
    assert found.headers["cache-control"] == "private, no-store"


@pytest.mark.shows("P-58")
def test_a_link_reads_the_artifact_for_as_long_as_it_says(storage: S3Storage) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    link = storage.get_presigned_url(KEY, expires_in=120)
    assert link is not None
    asked = parse_qs(urlsplit(link).query)
    assert asked["X-Amz-Expires"] == ["120"]
    assert asked["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert SECRET not in link
    assert httpx.get(link).content == DATA
    usual = storage.get_presigned_url(KEY)
    assert usual is not None
    assert parse_qs(urlsplit(usual).query)["X-Amz-Expires"] == ["300"]


def test_prefixes_keep_storages_of_one_bucket_apart(s3_settings: S3Settings) -> None:
    one = S3Storage(replace(s3_settings, prefix=f"{s3_settings.prefix}/one"))
    two = S3Storage(replace(s3_settings, prefix=f"{s3_settings.prefix}/one2"))
    one.put_bytes(KEY, b"1", PDF)
    assert list(two.list()) == []
    assert two.delete(KEY) is False
    assert list(one.list()) == [KEY]


def test_a_list_goes_over_more_than_a_page(storage: S3Storage) -> None:
    keys = {f"pdfs/{number}/a.pdf" for number in range(2 * A_PAGE + 1)}
    for key in keys:
        storage.put_bytes(key, b"x", PDF)
    assert set(storage.list("pdfs")) == keys


def test_objects_with_other_names_are_not_listed(storage: S3Storage, bucket: S3Store) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    obstore.put(bucket, "pdfs/.hidden", b"x")
    assert list(storage.list()) == [KEY]


# --- damage -------------------------------------------------------------------------------


@pytest.mark.shows("P-58")
def test_damage_is_noticed_at_every_reading(storage: S3Storage, bucket: S3Store) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    digest = storage.stat(KEY).sha256
    obstore.put(bucket, KEY, DATA[:-1], attributes={"sha256": digest, "Content-Type": PDF})
    with pytest.raises(ArtifactUnreadable, match="damaged"):
        storage.get_bytes(KEY)
    with pytest.raises(ArtifactUnreadable, match="damaged"):
        storage.read_range(KEY, 0, 4)


@pytest.mark.shows("P-58")
def test_an_object_without_a_digest_is_no_artifact(storage: S3Storage, bucket: S3Store) -> None:
    obstore.put(bucket, KEY, DATA)
    for call in (storage.get_bytes, storage.stat):
        with pytest.raises(ArtifactUnreadable, match="SHA-256"):
            call(KEY)
    assert storage.delete(KEY)


# --- trouble ------------------------------------------------------------------------------


def refused_by(storage: S3Storage, call: str) -> str:
    """The words of the refusal, of the class that the call promises."""
    expected = ArtifactWriteFailed if call in WRITES else ArtifactUnreadable
    with pytest.raises(expected) as raised:
        every_call(storage)[call]()
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None or raised.value.__suppress_context__
    return str(raised.value)


@pytest.fixture(scope="module")
def fallen() -> Emulator:
    """An emulator that was up and is down."""
    with emulator() as running:
        running.stop()
        return running


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_is_down_is_told_apart_from_a_missing_artifact(
    fallen: Emulator, s3_settings: S3Settings, call: str
) -> None:
    storage = S3Storage(replace(s3_settings, endpoint_url=fallen.url, retries=1))
    said = refused_by(storage, call)
    assert "no answer" in said
    assert SECRET not in said


def test_a_server_that_comes_back_is_used_again(s3_settings: S3Settings) -> None:
    answers = Answers(503)
    with answers.serve() as url:
        storage = S3Storage(replace(s3_settings, endpoint_url=url, retries=0))
        with pytest.raises(ArtifactWriteFailed):
            storage.put_bytes(KEY, DATA, PDF)
        answers.status = 200
        assert storage.put_bytes(KEY, DATA, PDF) == KEY


@pytest.mark.parametrize("call", CALLS)
def test_a_bucket_that_is_not_there_is_told_apart_from_a_missing_artifact(
    s3_settings: S3Settings, call: str
) -> None:
    storage = S3Storage(replace(s3_settings, bucket="no-such-bucket"))
    assert "404 NoSuchBucket" in refused_by(storage, call)


class Answers:
    """A server that answers every request alike, and counts them."""

    def __init__(self, status: int, body: str = "") -> None:
        self.status, self.body = status, body.encode()
        self.requests: list[str] = []

    @contextmanager
    def serve(self) -> Iterator[str]:
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                answers.requests.append(self.command)
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.send_response(answers.status)
                self.send_header("content-length", str(len(answers.body)))
                self.send_header("etag", '"0"')
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answers.body)

            do_GET = do_PUT = do_HEAD = do_DELETE = handle_any  # noqa: N815 - as the base class

            def log_message(self, format: str, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()


DENIED = (
    "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIDTEST</AWSAccessKeyId>"
    "<StringToSign>what was signed</StringToSign></Error>"
)


@pytest.mark.shows("P-34")
@pytest.mark.parametrize("call", CALLS)
def test_what_a_server_says_of_the_credentials_is_not_repeated(
    s3_settings: S3Settings, call: str
) -> None:
    with Answers(403, DENIED).serve() as url:
        said = refused_by(S3Storage(replace(s3_settings, endpoint_url=url)), call)
    assert "403" in said
    assert not any(word in said for word in ("AKIDTEST", "what was signed", SECRET))


@pytest.mark.parametrize("retries", [0, 2])
def test_a_server_in_trouble_is_asked_a_bounded_number_of_times(
    s3_settings: S3Settings, retries: int
) -> None:
    answers = Answers(503)
    with answers.serve() as url:
        storage = S3Storage(replace(s3_settings, endpoint_url=url, retries=retries))
        with pytest.raises(ArtifactWriteFailed, match="503"):
            storage.put_bytes(KEY, DATA, PDF)
    assert answers.requests == ["PUT"] * (retries + 1)


@pytest.mark.parametrize("call", ["put", "get", "list"])
def test_a_server_that_never_answers_is_given_up(s3_settings: S3Settings, call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        soon = timedelta(milliseconds=200)
        asked = replace(s3_settings, endpoint_url=url, timeout=soon, retries=1)
        assert "no answer" in refused_by(S3Storage(asked), call)


# --- settings -----------------------------------------------------------------------------

VARIABLES = {
    "S3_BUCKET": "pdf-artifacts",
    "S3_ENDPOINT_URL": "https://s3.example.com",
    "S3_REGION": "eu-central-1",
    "S3_ACCESS_KEY_ID": "AKIDTEST",
    "S3_SECRET_ACCESS_KEY": SECRET,
    "S3_PREFIX": "ulak/prod",
}


def test_the_settings_are_those_of_the_variables() -> None:
    assert S3Settings.from_settings({**VARIABLES, "OTHER": "x"}) == S3Settings(
        "pdf-artifacts",
        endpoint_url="https://s3.example.com",
        region="eu-central-1",
        access_key_id="AKIDTEST",
        secret_access_key=SECRET,
        prefix="ulak/prod",
    )
    assert S3Settings.from_settings({"S3_BUCKET": "pdfs", "S3_PREFIX": ""}) == S3Settings("pdfs")


@pytest.mark.shows("P-34")
def test_no_secret_is_shown() -> None:
    storage = S3Storage.from_settings(VARIABLES)
    for shown in (repr(storage), str(storage), repr(S3Settings.from_settings(VARIABLES))):
        assert "pdf-artifacts" in shown
        assert SECRET not in shown
        assert "AKIDTEST" not in shown


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"S3_BUCKET": ""}, "S3_BUCKET"),
        ({"S3_BUCKET": "Not A Bucket"}, "S3_BUCKET"),
        ({"S3_ENDPOINT_URL": "ftp://s3.example.com"}, "S3_ENDPOINT_URL"),
        ({"S3_ENDPOINT_URL": "s3.example.com"}, "S3_ENDPOINT_URL"),
        ({"S3_ENDPOINT_URL": f"https://user:{SECRET}@s3.example.com"}, "S3_ENDPOINT_URL"),
        ({"S3_ENDPOINT_URL": "https://s3.example.com/bucket"}, "S3_ENDPOINT_URL"),
        ({"S3_ENDPOINT_URL": "https://s3.example.com:no"}, "S3_ENDPOINT_URL"),
        ({"S3_REGION": "over there"}, "S3_REGION"),
        ({"S3_SECRET_ACCESS_KEY": ""}, "S3_SECRET_ACCESS_KEY"),
        ({"S3_ACCESS_KEY_ID": ""}, "S3_ACCESS_KEY_ID"),
        ({"S3_PREFIX": "../up"}, "S3_PREFIX"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_without_secrets(
    change: dict[str, str], named: str
) -> None:
    with pytest.raises(BadInput) as raised:
        S3Settings.from_settings({**VARIABLES, **change})
    assert named in str(raised.value)
    assert SECRET not in str(raised.value)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(BadInput) as raised:
        S3Settings.from_settings({"S3_REGION": "?", "S3_PREFIX": "..", "S3_ACCESS_KEY_ID": "x"})
    names = ("S3_BUCKET", "S3_REGION", "S3_PREFIX", "S3_SECRET_ACCESS_KEY")
    assert all(name in str(raised.value) for name in names)


def test_variables_of_other_tools_have_no_say(
    s3_settings: S3Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_BUCKET", "another")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    storage = S3Storage(s3_settings)
    storage.put_bytes(KEY, DATA, PDF)
    assert storage.get_bytes(KEY) == DATA
    link = storage.get_presigned_url(KEY)
    assert link is not None
    assert "of+somebody" not in link
    assert "Security-Token" not in link


def test_without_obstore_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(NotSupported, match=r"ulak\[s3\]"):
        S3Storage(S3Settings("pdfs"))


def test_importing_artifacts_loads_no_driver() -> None:
    listing = (
        "import sys, ulak.artifacts, ulak.services.pdf.artifacts\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    child = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    assert not {"obstore", "cryptography"} & set(child.stdout.split())
