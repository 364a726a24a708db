"""Keys: found by id, stored as a hash, rotated with an overlap, revoked within five seconds."""

from datetime import timedelta

import pytest

from ulak.auth import api_keys as module
from ulak.auth import secrets
from ulak.auth.principal import Principal
from ulak.errors import BadInput, Forbidden, NotFound, StoreError, Unauthenticated


def who(identity, credential):
    """Ask as the guard of an application does."""
    return identity.recall(credential) or identity.authenticate(credential)


def reason(identity, credential):
    with pytest.raises(Unauthenticated) as refused:
        who(identity, credential)
    assert credential[14:] not in str(refused.value) or not credential[14:]
    return refused.value.reason


def stored(office, text):
    row = office.stores[0].find_credential("key", secrets.id_of(text))
    assert row is not None
    return row


def test_a_key_is_its_holder_in_every_process(office):
    text = office.key(tenant="acme", scopes=["jobs:submit", "jobs:read"])
    assert who(office.there, text) == Principal(
        "key:ci", tenant="acme", roles=frozenset({"service"}),
        scopes=frozenset({"jobs:read", "jobs:submit"}), credential=f"key/{secrets.id_of(text)}",
    )  # fmt: skip


@pytest.mark.shows("S-32")
def test_a_key_is_stored_as_its_id_and_a_hash_and_nowhere_else(office):
    text = office.key()
    row = stored(office, text)
    assert (row.id, row.hash) == (text[5:13], secrets.hash_of(text))
    who(office.here, text)
    who(office.there, text)
    for identity in (office.here, office.there):
        assert text not in repr(vars(identity._remembered))
    written = office.written()
    assert row.id in written
    assert text[14:] not in written


@pytest.mark.shows("S-32")
def test_the_hash_is_compared_for_an_unknown_id_too(office, monkeypatch):
    known, compared = office.key(), []
    genuine = secrets.is_hash_of
    monkeypatch.setattr(
        secrets, "is_hash_of", lambda *about: compared.append(about) or genuine(*about)
    )
    # The right id with another secret, and an id that nobody has.
    forged = f"{known[:14]}{secrets.new_secret()[14:-6]}"
    forged += secrets._checksum(forged)
    for text in (forged, secrets.new_secret(), "x" * 40):
        assert reason(office.here, text) == "unknown"
    assert [found is None for _, found in compared] == [False, True, True]


def test_what_cannot_be_a_key_is_malformed_without_asking_the_store(office, monkeypatch):
    monkeypatch.setattr(office.stores[0], "find_credential", lambda *_: pytest.fail("asked"))
    for text in ("", "short", "ulak_ab12cd34_Xyz123", "eyJ"):
        assert reason(office.here, text) == "malformed"


@pytest.mark.shows("S-34")
def test_old_and_new_are_good_together_until_the_overlap_is_over(office):
    old = office.key(life=timedelta(days=90))
    office.turn(days=30)
    new = office.here.rotate_key(secrets.id_of(old), actor="ada", overlap=timedelta(hours=1))
    assert who(office.there, old).name == who(office.there, new.text).name == "key:ci"
    assert new.key.expires_at == new.key.created_at + timedelta(days=90)
    office.turn(minutes=59, seconds=59)
    assert who(office.there, old).roles == {"service"}
    office.turn(seconds=1)
    assert reason(office.there, old) == "expired"
    assert who(office.there, new.text).credential == f"key/{new.key.id}"
    lines = office.stores[0].audit_trail()
    assert [(line.act, line.actor) for line in lines] == [
        ("rotated", "ada"), ("created", "ada"), ("created", "ada"),
    ]  # fmt: skip


@pytest.mark.shows("S-34")
def test_the_old_key_of_a_rotation_can_be_revoked_before_the_overlap_is_over(office):
    old = office.key()
    new = office.here.rotate_key(secrets.id_of(old), actor="ada")
    office.here.revoke_key(secrets.id_of(old), actor="ada")
    assert reason(office.there, old) == "revoked"
    assert who(office.there, new.text).name == "key:ci"


def test_a_rotation_without_an_overlap_ends_the_old_key_and_never_lengthens_its_life(office):
    first, second = office.key(), office.key(life=timedelta(minutes=1))
    office.here.rotate_key(secrets.id_of(first), actor="ada", overlap=timedelta(0))
    assert reason(office.here, first) == "expired"
    office.here.rotate_key(secrets.id_of(second), actor="ada", overlap=timedelta(days=9))
    office.turn(minutes=1)
    assert reason(office.here, second) == "expired"


@pytest.mark.shows("S-34")
def test_revocation_acts_within_five_seconds_in_every_process(office):
    text = office.key()
    assert who(office.there, text).name == "key:ci"
    office.here.revoke_key(secrets.id_of(text), actor="ada", note="it leaked")
    assert reason(office.here, secrets.new_secret()) == "unknown"
    assert who(office.there, text), "it is remembered for a moment"
    office.turn(microseconds=module.SPAN_US - 1)
    assert who(office.there, text)
    office.turn(microseconds=1)
    assert module.SPAN_US < 5_000_000
    assert reason(office.there, text) == "revoked"
    again = office.here.revoke_key(secrets.id_of(text), actor="bob")
    assert again.state == "revoked"
    (line, *_) = office.stores[0].audit_trail()
    assert (line.act, line.actor, line.note) == ("revoked", "ada", "it leaked")


def test_what_is_remembered_counts_from_when_the_store_was_asked(office, monkeypatch):
    text = office.key()
    find = office.stores[1].find_credential

    def slowly(kind, id):
        row = find(kind, id)
        office.here.revoke_key(id, actor="ada")
        office.turn(seconds=3)
        return row

    with monkeypatch.context() as slow:
        slow.setattr(office.stores[1], "find_credential", slowly)
        assert office.there.authenticate(text), "it was good when it was asked for"
    assert reason(office.there, text) == "revoked"


def test_a_key_expires_to_the_microsecond_although_it_is_remembered(office):
    text = office.key(life=timedelta(seconds=1))
    assert who(office.here, text)
    office.turn(microseconds=999_999)
    assert who(office.here, text)
    office.turn(microseconds=1)
    assert reason(office.here, text) == "expired"


def test_no_more_are_remembered_than_there_is_room_for(office):
    memory = module.Remembered(office.clock, most=3)
    ada = Principal("ada", tenant=None, roles=frozenset())
    for n in range(5):
        memory.keep(str(n), ada, asked_at=office.clock.now(), expires_at=None)
    memory.keep("3", ada, asked_at=office.clock.now(), expires_at=None)
    assert [memory.find(str(n)) is not None for n in range(5)] == [False, False, True, True, True]
    office.turn(seconds=-1)
    assert memory.find("3") is None, "a clock that went back proves nothing"


@pytest.mark.shows("S-34")
def test_a_use_is_written_at_most_once_a_minute(office, monkeypatch):
    text, written = office.key(), []
    for store in office.stores:
        note = store.note_use
        monkeypatch.setattr(
            store, "note_use", lambda *use, note=note: written.append(use) or note(*use)
        )
    minute = office.clock.now()
    for _ in range(20):
        for identity in (office.here, office.there):
            identity.authenticate(text)
        office.turn(seconds=3)
    assert office.clock.now() == minute + 60_000_000
    assert written == [("key", secrets.id_of(text), minute)]
    office.here.authenticate(text)
    assert len(written) == 2
    (key,) = office.here.keys()
    assert key.used_at == key.created_at + timedelta(minutes=1)


def test_a_use_that_cannot_be_written_fails_nobody(office, monkeypatch, caplog):
    text = office.key()

    def fail(*_):
        raise StoreError("the disk is full")

    monkeypatch.setattr(office.stores[0], "note_use", fail)
    assert office.here.authenticate(text).name == "key:ci"
    assert "a use was not noted" in caplog.text
    assert text not in caplog.text


@pytest.mark.shows("S-34")
def test_lists_show_no_more_than_the_id_of_a_key(office):
    one, two = office.key(), office.key(life=timedelta(seconds=1))
    office.here.revoke_key(secrets.id_of(one), actor="ada")
    office.turn(seconds=1)
    listed = office.there.keys()
    assert {key.id: key.state for key in listed} == {
        secrets.id_of(one): "revoked", secrets.id_of(two): "expired",
    }  # fmt: skip
    for text in (one, two):
        assert text[14:] not in repr(listed)
        assert secrets.hash_of(text) not in repr(listed)
    issued = office.here.create_key("cd", roles=["viewer"], actor="ada")
    assert issued.text not in repr(issued)


@pytest.mark.parametrize(
    ("wrong", "cure"),
    [
        ({"name": "Ada"}, "lower-case letters"),
        ({"name": ""}, "lower-case letters"),
        ({"name": "key:ci"}, "lower-case letters"),
        ({"name": "x" * 65}, "64 at most"),
        ({"name": "ulak"}, "choose another name"),
        ({"roles": []}, "needs a role: viewer, service, operator, admin"),
        ({"roles": ["root"]}, "there is no role 'root'; there are viewer, service"),
        ({"scopes": ["jobs:eat"]}, "there is no scope 'jobs:eat'; there are jobs:read"),
        ({"scopes": ["queues:limit"]}, "service lacks it; give the role admin"),
        ({"roles": ["admin"], "tenant": "acme", "scopes": ["audit:read"]}, "whole installation"),
        ({"tenant": "a\x00b"}, "the tenant is"),
        ({"tenant": "\ud800"}, "the tenant is"),
        ({"life": timedelta(0)}, "lives for some time"),
        ({"life": timedelta(days=99_999)}, "hundred years"),
        ({"actor": ""}, "say who acts"),
    ],
)
def test_what_cannot_be_given_is_refused_with_what_can(office, wrong, cure):
    terms = {"name": "ci", "roles": ["service"], "actor": "ada"} | wrong
    with pytest.raises(BadInput, match=cure):
        office.here.create_key(terms.pop("name"), **terms)
    assert office.here.keys() == []


def test_nobody_gives_more_than_they_have(office):
    narrow = Principal(
        "key:desk", tenant=None, roles=frozenset({"admin"}),
        scopes=frozenset({"identity:manage", "jobs:read"}),
    )  # fmt: skip
    with pytest.raises(Forbidden, match="key:desk may not give what it does not have: jobs:submit"):
        office.here.create_key("ci", roles=["service"], actor="key:desk", giver=narrow)
    given = {"actor": "key:desk", "giver": narrow}
    office.here.create_key("ci", roles=["service"], scopes=["jobs:read"], **given)
    root = secrets.id_of(office.key(roles=["admin"]))
    with pytest.raises(Forbidden):
        office.here.rotate_key(root, **given)
    assert len(office.here.keys()) == 2


def test_a_key_that_is_not_there_is_not_found_and_a_pasted_one_is_not_repeated(office):
    for id in ("zz99zz99", "", "no-id", "\x00", "x" * 500):
        with pytest.raises(NotFound, match="there is no key"):
            office.here.revoke_key(id, actor="ada")
    pasted = secrets.new_secret()
    with pytest.raises(NotFound) as refused:
        office.here.revoke_key(pasted, actor="ada")
    assert pasted[14:] not in str(refused.value)
    mine = office.key()
    assert office.here.revoke_key(mine, actor="ada").id == secrets.id_of(mine)
    with pytest.raises(BadInput, match="is revoked; make another"):
        office.here.rotate_key(secrets.id_of(mine), actor="ada")


def test_a_key_of_somebodys_own_making_is_adopted_once_and_stays_revoked(office):
    text = "a-key-that-an-operator-has-chosen-0123"
    adopt = {"name": "admin", "roles": ["admin"], "actor": "ULAK_ADMIN_KEY"}
    assert office.here.adopt_key(text, **adopt)
    assert not office.there.adopt_key(text, **adopt)
    assert who(office.there, text).name == "key:admin"
    office.here.revoke_key(secrets.id_of(text), actor="ada")
    assert not office.here.adopt_key(text, **adopt)
    office.turn(seconds=5)
    assert reason(office.there, text) == "revoked"
    with pytest.raises(BadInput, match="plain characters"):
        office.here.adopt_key("short", **adopt)
