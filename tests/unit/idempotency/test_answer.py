"""Answers: which are kept, what of them, and how they come back."""

from hashlib import sha256

import pytest

from ulak.errors import AnswerNotStored
from ulak.idempotency import Answer, Scope
from ulak.idempotency.scope import answer_in
from ulak.store.records import COMPLETED, FAILED, PROCESSING, RecordRow

SCOPE = Scope("orders.charge")
ROW = RecordRow(
    "", "orders.charge", "k", PROCESSING, "00" * 32, "", "token", None, 1, None, None, None, None,
    None, None, None, 0, 0, 0,
)  # fmt: skip

OK = [200, 201, 202, 204, 206, 301, 303]
REFUSED = [402, 406, 409, 410, 412, 418, 422, 451]
NOT_ASKED = [400, 401, 403, 404, 405, 413, 415]
PASSING = [408, 425, 429, 500, 502, 503, 504, 599]


def kept(answer: Answer, scope: Scope = SCOPE) -> Answer:
    """What comes back of an answer that is stored."""
    return answer_in(answer.in_row(ROW, scope))


@pytest.mark.shows("I-16", "I-17")
@pytest.mark.parametrize(
    ("status", "stored_as"), [(n, COMPLETED) for n in OK] + [(n, FAILED) for n in REFUSED]
)
def test_success_and_refusal_are_kept(status: int, stored_as: str) -> None:
    answer = Answer(status, b"{}")
    assert answer.is_kept(SCOPE)
    assert answer.in_row(ROW, SCOPE).status == stored_as
    assert kept(answer).status == status


@pytest.mark.shows("I-18")
@pytest.mark.parametrize("status", NOT_ASKED)
def test_a_request_that_asked_for_nothing_is_never_kept(status: int) -> None:
    assert not Answer(status).is_kept(SCOPE)
    assert not Answer(status).is_kept(Scope("orders.charge", cache_errors=True))


@pytest.mark.shows("I-19")
@pytest.mark.parametrize("status", PASSING)
def test_what_may_succeed_later_is_kept_only_where_the_scope_says_so(status: int) -> None:
    assert not Answer(status).is_kept(SCOPE)
    assert Answer(status).is_kept(Scope("orders.charge", cache_errors=True))


@pytest.mark.shows("I-2", "I-30")
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b' {"b" : 1.0,\r\n"a":1}\n', "müşteri 🧵".encode(), b"\xef\xbb\xbf{}",
        b"\xff\xfe\0", b"a\0b", b"\0", bytes(range(256)), b"\xed\xa0\x80", b"x" * 1024 * 1024,
    ],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_a_body_comes_back_to_the_byte(body: bytes) -> None:
    row = Answer(200, body).in_row(ROW, SCOPE)
    assert answer_in(row).body == body
    # No store has a text for zeros, and none has one for what is no text.
    assert "\0" not in (row.response_json or "")
    assert (row.response_json is None) is (row.response_bytes is not None)


@pytest.mark.shows("I-30")
def test_the_headers_that_say_what_the_answer_is_come_back() -> None:
    headers = (
        ("Content-Type", "application/json"), ("location", "/v1/orders/7"), ("ETag", '"7"'),
        ("Link", "</a>; rel=next"), ("Link", "</b>; rel=last"), ("X-Own", "1"), ("Server", "x"),
        ("Set-Cookie", "a=b"), ("Date", "now"), ("Connection", "close"), ("Content-Length", "2"),
        ("Transfer-Encoding", "chunked"), ("Keep-Alive", "1"), ("Trailer", "x"), ("TE", "x"),
        ("Upgrade", "x"), ("Proxy-Authenticate", "x"),
    )  # fmt: skip
    assert kept(Answer(200, b"{}", headers)).headers == headers[:5]


@pytest.mark.shows("I-30")
def test_a_scope_names_more_headers_but_never_those_of_one_moment() -> None:
    scope = Scope("orders.charge", headers=("X-Own", "set-cookie", "DATE", "Connection"))
    headers = (("x-own", "ä"), ("Set-Cookie", "a"), ("Date", "b"), ("connection", "c"))
    assert kept(Answer(200, b"{}", headers), scope).headers == (("x-own", "ä"),)


@pytest.mark.shows("I-31")
def test_of_a_body_that_is_too_large_the_status_and_the_digest_are_kept() -> None:
    scope = Scope("orders.charge", max_body_bytes=4)
    assert kept(Answer(200, b"1234"), scope).body == b"1234"
    row = Answer(201, b"12345").in_row(ROW, scope)
    digest = sha256(b"12345").hexdigest()
    assert (row.status, row.response_status, row.response_digest) == (COMPLETED, 201, digest)
    assert (row.response_json, row.response_bytes) == (None, None)
    with pytest.raises(AnswerNotStored, match=rf"201.*{digest}"):
        answer_in(row)


@pytest.mark.shows("I-31")
def test_a_body_of_one_mebibyte_is_kept_by_default_and_no_larger_one() -> None:
    limit = 1024 * 1024
    assert kept(Answer(200, b"x" * limit)).body == b"x" * limit
    assert Answer(200, b"x" * (limit + 1)).in_row(ROW, SCOPE).response_digest is not None
