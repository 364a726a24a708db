"""Keys knows API keys and nothing else, remembers them for a moment, and forgets in time."""

from contextlib import nullcontext

import pytest

import ulak
from tests.conformance.stores import make_schema
from ulak.auth import Directory, Keys, api_keys
from ulak.auth.identity import Identity
from ulak.auth.principal import ANYBODY, Principal
from ulak.clock import ManualClock
from ulak.errors import Unauthenticated

SECRET = "a secret of tests that is long enough"  # noqa: S105 - guards nothing


class Site:
    """An engine that is not open yet, and another process that makes and ends its keys."""

    def __init__(self, url):
        self.clock = ManualClock()
        self.engine, self.other = ulak.connect(url), ulak.connect(url)
        for engine in (self.engine, self.other):
            engine.store.clock = self.clock
        self.identity = Identity(self.other.open().store, secret=SECRET)
        self.keys = Keys(self.engine)

    def key(self, **options):
        return Directory(self.other.store).create_key(
            "press", **{"roles": ["service"], "actor": "ada"} | options
        )

    def reason(self, credential):
        assert self.keys.recall(credential) is None
        with pytest.raises(Unauthenticated) as refused:
            self.keys.authenticate(credential)
        return refused.value.reason


@pytest.fixture(params=["sqlite", "postgres"])
def site(request, tmp_path):
    lent = nullcontext(f"sqlite:///{tmp_path / 'keys.db'}")
    if request.param == "postgres":
        lent = request.getfixturevalue("databases").lend(make_schema)
    with lent as url:
        made = Site(url)
        yield made
        made.engine.close()
        made.other.close()


@pytest.mark.shows("S-32")
def test_a_key_is_its_holder_and_the_engine_is_opened_for_it(site):
    made = site.key(tenant="acme")
    assert site.keys.authenticate(made.text) == Principal(
        "key:press", tenant="acme", roles=frozenset({"service"}), credential=f"key/{made.key.id}"
    )
    assert made.text not in repr(vars(site.keys._remembered))


def test_neither_a_login_nor_a_link_is_a_key(site):
    site.identity.create_user("ada", "correct horse", roles=["admin"], actor="root")
    login = site.identity.login("ada", "correct horse")
    assert site.identity.authenticate(login.token).name == "ada"
    ada = Principal("ada", tenant=None, roles=frozenset({"admin"}))
    link = site.identity.make_link(ada)
    of_link = site.identity.spend_link(site.identity.make_link(ada))
    for credential in (login.token, link, of_link.token):
        assert site.reason(credential) == "unknown"
    for credential in ("", "short", "ulak_ab12cd34_Xyz123"):
        assert site.reason(credential) == "malformed"


@pytest.mark.shows("S-34")
def test_a_key_is_remembered_without_the_store_and_ends_within_five_seconds(site, monkeypatch):
    made = site.key()
    assert site.keys.authenticate(made.text).name == "key:press"
    with monkeypatch.context() as quiet:
        quiet.setattr(site.engine.store, "find_credential", lambda *_: pytest.fail("asked"))
        assert site.keys.recall(made.text).name == "key:press"
    site.identity.revoke_key(made.key.id, actor="ada")
    site.clock.advance(api_keys.SPAN_US / 1_000_000)
    assert api_keys.SPAN_US < 5_000_000
    assert site.reason(made.text) == "revoked"
    brief = site.key(life=1)
    assert site.keys.authenticate(brief.text)
    site.clock.advance(1)
    assert site.reason(brief.text) == "expired"


@pytest.mark.shows("S-34")
def test_its_use_is_noted_once_a_minute(site, monkeypatch):
    made, written = site.key(), []
    note = site.engine.store.note_use
    monkeypatch.setattr(
        site.engine.store, "note_use", lambda *use: written.append(use) or note(*use)
    )
    for _ in range(20):
        site.keys.authenticate(made.text)
        site.clock.advance(3)
    assert len(written) == 1
    site.keys.authenticate(made.text)
    assert len(written) == 2
    (key,) = site.identity.keys()
    assert key.used_at is not None
    assert (key.used_at - key.created_at).total_seconds() == 60


@pytest.mark.shows("S-32")
def test_the_hash_is_compared_for_an_unknown_id_too(site, monkeypatch):
    compared, genuine = [], api_keys.secrets.is_hash_of
    monkeypatch.setattr(
        api_keys.secrets, "is_hash_of", lambda *about: compared.append(about) or genuine(*about)
    )
    assert site.reason(api_keys.secrets.new_secret()) == "unknown"
    assert [stored for _, stored in compared] == [None]


def test_nobody_is_remembered_who_is_not_known(site):
    assert site.reason("x" * 40) == "unknown"
    assert site.keys.recall("x" * 40) is None
    assert site.keys.authenticate(site.key().text) != ANYBODY
