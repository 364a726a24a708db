"""Tokens are HS256 and nothing else; they say who, and by which credential."""

import base64
import json
import sys

import jwt
import pytest

from ulak.auth.principal import Principal
from ulak.auth.tokens import Claims, Tokens, is_token
from ulak.clock import SECOND
from ulak.errors import BadInput, NotSupported, Unauthenticated

SECRET = "a secret of tests that is long enough"  # noqa: S105 - guards nothing
ADA = Principal(
    "ada", tenant="", roles=frozenset({"operator", "viewer"}), scopes=frozenset({"jobs:read"}),
    credential="user/ada",
)  # fmt: skip
NOW = 1_800_000_000 * SECOND
CLAIMS = Claims(ADA, kind="user", id="ada", version=3, issued_at=NOW, expires_at=NOW + 60 * SECOND)


@pytest.fixture
def tokens():
    return Tokens(SECRET)


def payload(**changes):
    said = jwt.decode(Tokens(SECRET).make(CLAIMS), options={"verify_signature": False})
    return {name: value for name, value in (said | changes).items() if value is not ...}


def signed(said, secret=SECRET, algorithm="HS256"):
    return jwt.encode(said, secret, algorithm=algorithm)


def reason(tokens, text, now=NOW):
    with pytest.raises(Unauthenticated) as refused:
        tokens.read(text, now)
    assert text not in str(refused.value)
    return refused.value.reason


def test_a_token_says_who_and_by_which_credential(tokens):
    text = tokens.make(CLAIMS)
    assert is_token(text)
    assert tokens.read(text, NOW) == CLAIMS
    assert jwt.get_unverified_header(text)["alg"] == "HS256"
    assert payload() == {
        "iss": "ulak", "sub": "ada", "tenant": "", "roles": ["operator", "viewer"],
        "scopes": ["jobs:read"], "credential": {"kind": "user", "id": "ada", "version": 3},
        "iat": NOW // SECOND, "exp": NOW // SECOND + 60,
    }  # fmt: skip


def test_a_token_of_no_tenant_sees_all_and_is_not_one_of_the_empty_tenant(tokens):
    everywhere = Principal("ada", tenant=None, roles=frozenset({"admin"}), credential="user/ada")
    claims = Claims(everywhere, kind="user", id="ada", version=1, issued_at=0, expires_at=SECOND)
    assert tokens.read(tokens.make(claims), 0).principal.tenant is None
    assert tokens.read(tokens.make(CLAIMS), NOW).principal.tenant == ""


def test_a_token_ends_by_the_stores_clock(tokens):
    text = tokens.make(CLAIMS)
    assert tokens.read(text, CLAIMS.expires_at - 1) == CLAIMS
    assert reason(tokens, text, CLAIMS.expires_at) == "expired"


def test_a_token_of_another_secret_or_algorithm_is_refused(tokens):
    assert reason(tokens, signed(payload(), "another secret that is long enough")) == "unknown"
    assert reason(tokens, signed(payload(), SECRET * 2, "HS512")) == "malformed"
    assert reason(tokens, signed(payload(), "", "none")) == "malformed"
    assert reason(tokens, signed(payload(iss="somebody"))) == "unknown"
    head, body, signature = tokens.make(CLAIMS).split(".")
    forged = base64.urlsafe_b64encode(json.dumps(payload(sub="root")).encode()).decode().rstrip("=")
    assert reason(tokens, f"{head}.{forged}.{signature}") == "unknown"
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    for end in (signature, ""):
        assert reason(tokens, f"{none}.{body}.{end}") == "malformed"


@pytest.mark.parametrize(
    "changes",
    [
        {"sub": ...}, {"exp": ...}, {"exp": "soon"}, {"credential": ...},
        {"credential": "user/ada"}, {"credential": {"kind": "user", "id": "ada"}},
        {"roles": 3}, {"tenant": ...},
    ],
)  # fmt: skip
def test_a_token_that_lacks_something_is_malformed(tokens, changes):
    assert reason(tokens, signed(payload(**changes))) == "malformed"


@pytest.mark.parametrize("text", ["eyJ..", "eyJhbGciOiJIUzI1NiJ9.!.x", "eyJ.ş.x", "eyJ.\ud800.x"])
def test_what_only_looks_like_a_token_is_malformed(tokens, text):
    assert is_token(text)
    assert reason(tokens, text) == "malformed"


def test_a_secret_of_less_than_32_characters_is_refused():
    with pytest.raises(BadInput, match="has 31 characters; 32 or more"):
        Tokens("x" * 31)
    Tokens("x" * 32)


def test_without_pyjwt_the_extra_is_named(tokens, monkeypatch):
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(NotSupported, match=r"ulak\[web\]"):
        tokens.make(CLAIMS)
