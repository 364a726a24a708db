"""Output options: read field by field, allowed by the template alone, and part of the job's key."""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services.pdf import site as sites
from tests.services.pdf.site import TEMPLATE, Site
from ulak.errors import BadInput
from ulak.idempotency import fingerprint
from ulak.services.pdf.flow import payload_of
from ulak.services.pdf.model import PermanentPdfError
from ulak.services.pdf.output import (
    NAMES,
    NOTHING_MORE,
    BadOutput,
    Password,
    Sealing,
    Watermark,
    as_json,
    read_output,
    read_stored,
)
from ulak.services.pdf.templates import Templates
from ulak.web.idempotency import Requested

KEY = bytes(range(64))
PASSWORD = "çilek-4711-secret"  # noqa: S105 - looked for in everything that is kept
XML = base64.b64encode(b"<invoice/>").decode()
A_FILE = {"name": "invoice.xml", "media_type": "application/xml", "data": XML}
A_LETTER = {"template_name": TEMPLATE, "variables": {"name": "Ada"}}

EACH: dict[str, Any] = {
    "metadata": {"title": "One", "keywords": ["a", "b"], "language": "tr"},
    "watermark": {"text": "TASLAK \N{EN DASH} ОБРАЗЕЦ"},
    "append": [A_LETTER],
    "attachments": [{**A_FILE, "relationship": "Data", "description": "the same, for machines"}],
    "password": {"user": PASSWORD, "allow": ["print"]},
}


def sealing() -> Sealing:
    return Sealing(KEY)


def manifest(*options: str) -> str:
    return f'version = "1"\ntitle = "Letter"\noptions = {list(options)}\n[variables]\nname = "text"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A template whose callers may have everything done."""
    made = tmp_path / "templates" / TEMPLATE
    made.mkdir(parents=True)
    (made / "manifest.toml").write_text(manifest(*NAMES))
    (made / "template.html").write_text("<!doctype html><p>Dear {{ name }}</p>")
    return made


@pytest.fixture
def open_site(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Site]]:
    monkeypatch.setattr(sites, "Pages", lambda: Templates([folder.parent]))
    made: list[Site] = []

    def start(**options: Any) -> Site:
        url = f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL"
        made.append(Site(url, tmp_path, **{"sealing": sealing, **options}))
        made[-1].heartbeat()
        return made[-1]

    yield start
    for site in made:
        site.close()


@pytest.fixture
def site(open_site: Callable[..., Site]) -> Site:
    return open_site()


def asked(site: Site, output: Any, **more: Any) -> httpx.Response:
    return site.create(options={"output": output}, **more)


def fields_of(answer: httpx.Response) -> set[str]:
    assert answer.status_code == 422, answer.text
    assert answer.json()["error_code"] == "VALIDATION_ERROR"
    return {one["field"] for one in answer.json()["details"]["fields"]}


def refused(said: Any) -> list[str]:
    with pytest.raises(BadOutput) as caught:
        read_output(said)
    return [place for place, _ in caught.value.wrong]


# --- reading --------------------------------------------------------------------


@pytest.mark.shows("P-55")
@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"rotate": 90}, "rotate"),
        ({"metadata": {}}, "metadata"),
        ({"metadata": "a"}, "metadata"),
        ({"metadata": {"heading": "a"}}, "metadata.heading"),
        ({"metadata": {"title": " "}}, "metadata.title"),
        ({"metadata": {"author": "a\x00b"}}, "metadata.author"),
        ({"metadata": {"subject": "x" * 1001}}, "metadata.subject"),
        ({"metadata": {"keywords": "a"}}, "metadata.keywords"),
        ({"metadata": {"keywords": ["a, b"]}}, "metadata.keywords"),
        ({"metadata": {"language": "Turkish language"}}, "metadata.language"),
        ({"watermark": {}}, "watermark.text"),
        ({"watermark": {"text": "x" * 61}}, "watermark.text"),
        ({"watermark": {"text": "a\nb"}}, "watermark.text"),
        ({"watermark": {"text": "a", "opacity": 0}}, "watermark.opacity"),
        ({"watermark": {"text": "a", "opacity": True}}, "watermark.opacity"),
        ({"watermark": {"text": "a", "opacity": float("nan")}}, "watermark.opacity"),
        ({"watermark": {"text": "a", "angle": 91}}, "watermark.angle"),
        ({"watermark": {"text": "a", "colour": "red"}}, "watermark.colour"),
        ({"append": []}, "append"),
        ({"append": [A_LETTER] * 21}, "append"),
        ({"append": [{"template_name": "x"}]}, "append.0.variables"),
        ({"append": [A_LETTER, {"variables": {}}]}, "append.1.template_name"),
        ({"attachments": [A_FILE, A_FILE]}, "attachments.1.name"),
        ({"attachments": [A_FILE, {**A_FILE, "name": "INVOICE.xml"}]}, "attachments.1.name"),
        ({"attachments": [{**A_FILE, "name": "../x"}]}, "attachments.0.name"),
        ({"attachments": [{**A_FILE, "name": "a\\b"}]}, "attachments.0.name"),
        ({"attachments": [{**A_FILE, "name": ".profile"}]}, "attachments.0.name"),
        ({"attachments": [{**A_FILE, "name": "ş" * 121}]}, "attachments.0.name"),
        ({"attachments": [{**A_FILE, "media_type": "xml"}]}, "attachments.0.media_type"),
        ({"attachments": [{**A_FILE, "data": "?"}]}, "attachments.0.data"),
        ({"attachments": [{**A_FILE, "relationship": "Mine"}]}, "attachments.0.relationship"),
        ({"attachments": [A_FILE] * 21}, "attachments"),
        ({"password": {}}, "password"),
        ({"password": {"allow": ["print"]}}, "password"),
        ({"password": {"user": "a", "allow": ["fly"]}}, "password.allow"),
        ({"password": {"user": "ş" * 64}}, "password.user"),
        ({"password": {"owner": "a\u00a0b"}}, "password.owner"),
        ({"password": {"owner": "\ufb01sh"}}, "password.owner"),
        ({"password": {"user": "same", "owner": "same"}}, "password.owner"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(said: Any, place: str) -> None:
    assert refused(said) == [place]


@pytest.mark.shows("P-55")
def test_what_is_read_is_written_and_read_as_the_same() -> None:
    for name, said in (*EACH.items(), ("attachments", [A_FILE])):
        if name != "password":
            read = read_output({name: said})
            assert read != NOTHING_MORE
            assert read_output(as_json(read)) == read
    assert as_json(NOTHING_MORE) == {}
    assert read_output({"watermark": {"text": "x", "opacity": 0.15, "angle": 45}}).watermark == (
        Watermark("x")
    ), "what is the default is the same as nothing"


def test_no_secret_and_no_text_is_told_by_what_is_read_or_refused() -> None:
    read = read_output({**EACH, "watermark": {"text": "tell-nobody"}})
    assert isinstance(read.password, Password)
    assert PASSWORD not in repr(read)
    assert "tell-nobody" not in repr(read)
    assert PASSWORD not in str(as_json(read))
    with pytest.raises(BadOutput) as caught:
        read_output({"password": {"user": f"{PASSWORD}\x00"}, "metadata": {"title": "tell\x00"}})
    assert PASSWORD not in str(caught.value)
    assert "tell" not in str(caught.value)
    assert [place for place, _ in caught.value.wrong] == ["password.user", "metadata.title"]


# --- what the template allows ---------------------------------------------------


@pytest.mark.shows("P-55")
@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_the_template_does_not_allow_is_422_and_names_the_field(
    site: Site, folder: Path, name: str
) -> None:
    others = [other for other in NAMES if other != name]
    (folder / "manifest.toml").write_text(manifest(*others))
    answer = asked(site, {name: EACH[name]})
    assert fields_of(answer) == {f"options.output.{name}"}
    assert ", ".join(others) in answer.json()["message"]
    assert PASSWORD not in answer.text
    assert site.count() == 0


@pytest.mark.shows("P-55")
@pytest.mark.parametrize(
    ("output", "fields"),
    [
        ({"rotate": 90}, {"options.output.rotate"}),
        ({"metadata": {"title": 4}}, {"options.output.metadata.title"}),
        ({"append": [{"template_name": "letter"}]}, {"options.output.append.0.variables"}),
        (
            {"append": [{"template_name": TEMPLATE, "variables": {"name": "a\x00"}}]},
            {"options.output.append.0.variables.name"},
        ),
        (
            {"append": [{"template_name": TEMPLATE, "variables": {"no name": 1}}]},
            {"options.output.append.0.variables"},
        ),
        (
            {"append": [{**A_LETTER, "template_version": "mine"}]},
            {"options.output.append.0.template_version"},
        ),
        ({"attachments": [{**A_FILE, "name": "/"}]}, {"options.output.attachments.0.name"}),
        ({"password": {"sealed": "mine"}}, {"options.output.password.sealed"}),
    ],
)
def test_any_other_word_is_422_and_nothing_is_made(
    site: Site, output: Any, fields: set[str]
) -> None:
    assert fields_of(asked(site, output)) == fields
    assert site.count() == 0


@pytest.mark.shows("P-55", "P-12")
def test_what_is_done_to_a_document_is_part_of_its_key(site: Site) -> None:
    plain = site.new()
    made = {name: asked(site, {name: said}).json()["job_id"] for name, said in EACH.items()}
    assert len({plain, *made.values()}) == len(EACH) + 1
    for name, said in EACH.items():
        again = asked(site, {name: said})
        assert (again.json()["job_id"], again.headers["Deduplicated"]) == (made[name], "true")
    other = asked(site, {"watermark": {"text": "KOPYA"}}).json()["job_id"]
    assert other not in made.values()
    nothing = asked(site, {}).json()["job_id"]
    assert nothing == plain


@pytest.mark.shows("P-55")
def test_documents_that_follow_are_judged_as_the_first_one(site: Site, folder: Path) -> None:
    unknown = asked(site, {"append": [A_LETTER, {"template_name": "secret", "variables": {}}]})
    assert (unknown.status_code, unknown.json()["error_code"]) == (400, "TEMPLATE_ERROR")
    assert "options.output.append.1" in unknown.json()["message"]
    wrong = asked(site, {"append": [{"template_name": TEMPLATE, "variables": {"age": 4}}]})
    assert (wrong.status_code, wrong.json()["error_code"]) == (400, "TEMPLATE_ERROR")
    named = {one["name"] for one in wrong.json()["details"]["variables"]}
    assert named == {"age", "name"}
    assert site.count() == 0
    # A template that follows and has changed makes another document.
    following = folder.parent / "broken"
    following.mkdir()
    (following / "manifest.toml").write_text('version = "1"\ntitle = "Following"')
    (following / "template.html").write_text("one")
    output = {"append": [{"template_name": "broken", "variables": {}}]}
    first = asked(site, output).json()["job_id"]
    (following / "template.html").write_text("another")
    assert asked(site, output).json()["job_id"] != first


@pytest.mark.shows("P-38", "P-55")
def test_no_html_stands_in_for_a_document_that_is_to_be_marked_or_protected(
    open_site: Callable[..., Site],
) -> None:
    site = open_site()
    with site.outage():
        site.later()
        plain = site.create(options={"fail_safe": "degrade"})
        marked = site.create(
            options={"fail_safe": "degrade", "output": {"watermark": {"text": "DRAFT"}}}
        )
    assert (plain.status_code, plain.headers["X-Pdf-Fallback"]) == (200, "html")
    assert marked.status_code == 503
    assert marked.json()["error_code"] == "PDF_RENDER_UNAVAILABLE"


def test_the_openapi_document_tells_every_output_option(site: Site) -> None:
    document = site.get("/openapi.json").json()
    body = document["paths"]["/pdf/jobs"]["post"]["requestBody"]["content"]["application/json"]
    options = body["schema"]["properties"]["options"]["properties"]
    assert set(options["output"]["properties"]) == set(NAMES)
    assert "$ref" not in str(options["output"])


# --- passwords ------------------------------------------------------------------


@pytest.mark.shows("P-55")
def test_a_password_is_kept_nowhere_in_clear(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = {"password": {"user": PASSWORD, "owner": f"{PASSWORD}-owner"}}
    headers = {"Idempotency-Key": "once", "Content-Type": "application/json"}
    job_id = asked(site, output, headers=headers).json()["job_id"]
    repeated = asked(site, output, headers=headers)
    assert repeated.json()["job_id"] == job_id
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("jobs.db*"))
    assert PASSWORD.encode() not in kept
    assert PASSWORD.encode("unicode_escape") not in kept
    assert PASSWORD not in caplog.text
    assert PASSWORD not in site.get(f"/pdf/jobs/{job_id}").text
    stored = site.jobs.read_job(job_id).payload["options"]["output"]["password"]
    assert set(stored) == {"sealed", "allow"}
    # A plain digest of the request is what anybody could try passwords against.
    body = {"template_name": TEMPLATE, "variables": {"name": "Ada"}, "options": {"output": output}}
    requested = Requested(
        "POST", "/pdf/jobs", "", "key:shop", json.dumps(body).encode(), "application/json"
    )
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as database:
        rows = database.execute("SELECT request_hash FROM idempotency_records").fetchall()
    plain = fingerprint(**requested._asdict())
    assert rows == [(sealing().mask(plain),)]


@pytest.mark.shows("P-55")
def test_the_key_depends_on_the_password(site: Site) -> None:
    first = asked(site, {"password": {"user": PASSWORD}}).json()["job_id"]
    assert asked(site, {"password": {"user": PASSWORD}}).json()["job_id"] == first
    assert asked(site, {"password": {"user": "another one"}}).json()["job_id"] != first
    assert asked(site, {"password": {"owner": PASSWORD}}).json()["job_id"] != first
    fewer = {"password": {"user": PASSWORD, "allow": []}}
    assert asked(site, fewer).json()["job_id"] != first


@pytest.mark.shows("P-55")
@pytest.mark.parametrize("lack", ["nobody seals", "no secret"])
def test_where_passwords_cannot_be_sealed_they_are_refused(
    open_site: Callable[..., Site], lack: str
) -> None:
    def none() -> Sealing:
        raise BadInput("ULAK_SECRET is not set")

    site = open_site(sealing=None if lack == "nobody seals" else none)
    answer = asked(site, {"password": {"user": PASSWORD}})
    assert fields_of(answer) == {"options.output.password"}
    assert PASSWORD not in answer.text
    assert site.count() == 0
    assert asked(site, {"metadata": {"title": "x"}}).status_code == 202


def sealed(payload: dict[str, Any], user: str = PASSWORD) -> dict[str, Any]:
    return sealing().seal("letter", payload, {"user": user, "owner": ""})


def with_password(name: str = "Ada") -> dict[str, Any]:
    output = {"password": {"allow": ["print"]}}
    return payload_of({"name": name}, template_version="1", options={"output": output})


@pytest.mark.shows("P-55")
def test_a_seal_is_opened_for_its_own_document_alone() -> None:
    payload = sealed(with_password())
    assert sealed(with_password()) == payload, "the same request has the same key"
    read = read_stored("letter", payload, sealing)
    assert read.password == Password(PASSWORD, "", ("print",))
    other = with_password("Eve")
    seal = payload["options"]["output"]["password"]["sealed"]
    assert sealed(other)["options"]["output"]["password"]["sealed"] != seal
    assert len(seal) == len(sealed(other, "x")["options"]["output"]["password"]["sealed"])
    moved = {**other, "options": payload["options"]}
    freer = payload | {
        "options": {"output": {"password": {"sealed": seal, "allow": ["copy", "print"]}}}
    }
    plain = with_password()
    plain["options"]["output"]["password"]["user"] = "unsealed"
    for name, changed in (
        ("letter", moved), ("letter", freer), ("letter", plain), ("other", payload),
    ):  # fmt: skip
        with pytest.raises(PermanentPdfError) as caught:
            read_stored(name, changed, sealing)
        assert caught.value.detail == "password_sealed"
        assert PASSWORD not in str(caught.value)


def test_a_worker_with_another_secret_or_none_says_so() -> None:
    payload = sealed(with_password())

    def none() -> Sealing:
        raise BadInput("ULAK_SECRET is not set")

    for makes, why in (
        (lambda: Sealing(hashlib.sha512(b"other").digest()), "another secret"),
        (none, "ULAK_SECRET is not set"),
        (None, "no secret"),
    ):
        with pytest.raises(PermanentPdfError, match=why):
            read_stored("letter", payload, makes)
    with pytest.raises(BadInput, match="64"):
        Sealing(b"short")
