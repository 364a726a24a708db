"""People log in with a password, links log in once, and a login ends with its credential."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ulak.auth import passwords
from ulak.auth.identity import Identity
from ulak.auth.principal import Principal
from ulak.errors import BadInput, Forbidden, NotFound, Unauthenticated

ROOT = Principal("root", tenant=None, roles=frozenset({"admin"}))


def who(identity, credential):
    return identity.recall(credential) or identity.authenticate(credential)


def reason(act, *arguments):
    with pytest.raises(Unauthenticated) as refused:
        act(*arguments)
    return refused.value.reason


def test_a_person_who_knows_the_password_is_let_in(office):
    office.user(tenant="")
    login = office.there.login("ada", "correct horse")
    ada = Principal("ada", tenant="", roles=frozenset({"operator"}), credential="user/ada")
    assert login.principal == who(office.here, login.token) == ada
    assert login.token not in repr(login)


def test_a_wrong_password_and_an_unknown_person_are_answered_alike(office, monkeypatch):
    office.user()
    verified = []
    genuine = passwords.is_password
    monkeypatch.setattr(
        passwords, "is_password", lambda *about: verified.append(about) or genuine(*about)
    )
    said = set()
    wrong = [("ada", "wrong"), ("bob", "correct horse"), ("\x00", "x"), ("", "")]
    for n, (name, password) in enumerate(wrong):
        with pytest.raises(Unauthenticated) as refused:
            office.here.login(name, password, address=f"10.0.0.{n}")
        said.add((str(refused.value), refused.value.reason))
    assert said == {("the name or the password is wrong", "unknown")}
    assert [stored is None for _, stored in verified] == [False, True, True, True]


@pytest.mark.parametrize("act", ["disable", "password"])
def test_a_login_ends_within_five_seconds_of_its_end_in_every_process(office, act):
    office.user()
    token = office.there.login("ada", "correct horse").token
    assert who(office.there, token).name == "ada"
    if act == "disable":
        office.here.disable_user("ada", actor="root")
    else:
        office.here.set_password("ada", "another horse", actor="root")
    office.turn(seconds=5)
    assert reason(who, office.there, token) == "revoked"
    if act == "disable":
        assert reason(office.there.login, "ada", "correct horse") == "revoked"
    else:
        assert reason(office.there.login, "ada", "correct horse") == "unknown"
        office.turn(seconds=1)
        assert office.there.login("ada", "another horse").principal.name == "ada"


def test_a_login_is_good_for_a_day(office):
    office.user()
    login = office.here.login("ada", "correct horse")
    office.turn(hours=24, seconds=-1)
    assert who(office.here, login.token).name == "ada"
    office.turn(seconds=1)
    assert reason(who, office.here, login.token) == "expired"


def test_a_token_of_another_installation_is_unknown(office):
    office.user()
    elsewhere = Identity(office.stores[0], secret=office.secret + "!")
    token = elsewhere.login("ada", "correct horse").token
    assert reason(who, office.here, token) == "unknown"


def test_users_are_listed_and_audited_without_their_passwords(office):
    office.user()
    office.here.set_password("ada", "another horse", actor="ada", note="it was old")
    office.here.disable_user("ada", actor="root")
    office.here.disable_user("ada", actor="root")
    (ada,) = office.there.users()
    assert (ada.name, ada.state, ada.roles) == ("ada", "revoked", ("operator",))
    lines = office.stores[0].audit_trail(subject="credential/user/ada")
    assert [(line.act, line.actor, line.note) for line in lines] == [
        ("disabled", "root", None), ("password", "ada", "it was old"), ("created", "root", None),
    ]  # fmt: skip
    assert "argon2" not in repr((lines, ada))
    assert "horse" not in repr((lines, ada))


def test_what_cannot_be_a_user_is_refused(office):
    office.user()
    with pytest.raises(BadInput, match="there is a user ada"):
        office.user()
    with pytest.raises(BadInput, match="write 8 to 1024"):
        office.user("bob", "short")
    with pytest.raises(NotFound, match="there is no user 'bob'"):
        office.here.set_password("bob", "correct horse", actor="root")
    with pytest.raises(NotFound):
        office.here.disable_user("\x00", actor="root")
    office.here.disable_user("ada", actor="root")
    with pytest.raises(BadInput, match="ada is disabled"):
        office.here.set_password("ada", "another horse", actor="root")
    narrow = Principal("bob", tenant=None, roles=frozenset({"viewer"}))
    with pytest.raises(Forbidden):
        office.user("eve", giver=narrow)
    office.user("eve")
    with pytest.raises(Forbidden):
        office.here.set_password("eve", "another horse", actor="bob", giver=narrow)


# --- links ----------------------------------------------------------------------


def test_a_link_logs_in_once(office):
    link = office.here.make_link(ROOT)
    login = office.there.spend_link(link)
    assert login.principal.name == who(office.here, login.token).name == "root"
    assert login.principal.roles == {"admin"}
    assert reason(office.here.spend_link, link) == "revoked"
    assert [line.act for line in office.stores[0].audit_trail()] == ["spent", "created"]
    assert link[14:] not in repr(office.stores[0].credentials("link"))


def test_of_two_that_spend_a_link_at_once_one_is_let_in(office, monkeypatch):
    link, both_have_read = office.here.make_link(ROOT), threading.Barrier(2)
    for store in office.stores:

        def find(kind, id, find=store.find_credential):
            row = find(kind, id)
            both_have_read.wait(120)
            return row

        monkeypatch.setattr(store, "find_credential", find)

    def spend(identity):
        try:
            return identity.spend_link(link).principal.name
        except Unauthenticated as refused:
            return refused.reason

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(spend, (office.here, office.there))) == ["revoked", "root"]


def test_a_link_waits_ten_minutes_and_its_login_lasts_as_long_as_any(office):
    late, link = office.here.make_link(ROOT), office.here.make_link(ROOT)
    token = office.here.spend_link(link).token
    office.turn(minutes=10)
    assert reason(office.here.spend_link, late) == "expired"
    office.here.make_link(ROOT)
    assert reason(office.here.spend_link, late) == "expired", "forgotten a moment later"
    office.turn(seconds=1)
    office.here.make_link(ROOT)
    assert reason(office.here.spend_link, late) == "unknown"
    office.turn(hours=23)
    office.here.make_link(ROOT)
    assert who(office.here, token).name == "root"
    office.turn(hours=1)
    assert reason(who, office.here, token) == "expired"


def test_the_login_by_a_link_ends_with_whom_it_was_made_for(office):
    office.user()
    ada = office.here.login("ada", "correct horse").principal
    first, second = office.here.make_link(ada), office.here.make_link(ada)
    token = office.here.spend_link(first).token
    assert who(office.here, token) == ada
    office.here.disable_user("ada", actor="root")
    office.turn(seconds=5)
    assert reason(who, office.here, token) == "revoked"
    assert reason(office.here.spend_link, second) == "revoked"


def test_whoever_came_by_a_link_can_make_another(office):
    came = office.here.spend_link(office.here.make_link(ROOT)).principal
    again = office.here.spend_link(office.here.make_link(came))
    assert who(office.here, again.token).name == "root"


def test_a_link_is_no_key_and_a_key_no_link(office):
    assert reason(who, office.here, office.here.make_link(ROOT)) == "unknown"
    assert reason(office.here.spend_link, office.key()) == "unknown"
    assert reason(office.here.spend_link, "nonsense") == "malformed"
    for nobody in (
        Principal("", tenant=None, roles=frozenset({"admin"})),
        Principal("ada", tenant=None, roles=frozenset()),
    ):
        with pytest.raises(BadInput, match="a name and a role"):
            office.here.make_link(nobody)
