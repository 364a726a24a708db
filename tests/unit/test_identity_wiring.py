"""The secret and the first admin key: where they come from, and what is refused."""

import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ulak
from ulak import settings
from ulak.auth import secrets
from ulak.auth.tokens import kept_secret
from ulak.errors import BadInput, Unauthenticated
from ulak.wiring import identity_of

SECRET = "0123456789abcdef" * 2  # the shortest there may be
ADMIN_KEY = "an-admin-key-of-somebodys-own-making"


def load(folder: Path, **environ: str) -> settings.Settings:
    named = {f"ULAK_{name}": value for name, value in environ.items()}
    return settings.load({"ULAK_DATA": str(folder / "data"), **named}, folder)


@pytest.fixture
def engine(tmp_path):
    with ulak.connect(f"sqlite:///{tmp_path}/jobs.db") as engine:
        yield engine


def is_known(identity, credential):
    try:
        return identity.authenticate(credential).name == "key:admin"
    except Unauthenticated:
        return False


# --- settings -------------------------------------------------------------------


@pytest.mark.shows("C-85")
def test_a_secret_of_less_than_32_characters_is_no_start(tmp_path, engine):
    with pytest.raises(BadInput, match="ULAK_SECRET: it has 31 characters, 32 or more"):
        load(tmp_path, SECRET=SECRET[:-1])
    identity_of(engine, load(tmp_path, SECRET=SECRET, ENV="production"))


def test_every_bad_secret_is_named_at_once_and_none_is_shown(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.ulak]\nsecret = "in-the-project"\n')
    bad = {"SECRET": "too-short", "ADMIN_KEY": "change-me-in-production", "PORT": "x"}
    with pytest.raises(BadInput) as refused:
        load(tmp_path, **bad)
    said = str(refused.value)
    for part in ("[tool.ulak] secret", "ULAK_SECRET", "ULAK_ADMIN_KEY", "ULAK_PORT", "openssl"):
        assert part in said
    for value in ("in-the-project", "too-short", "change-me-in-production"):
        assert value not in said


@pytest.mark.parametrize("name", ["SECRET", "ADMIN_KEY"])
@pytest.mark.parametrize(
    "value",
    ["change-me-in-production", "CHANGE-ME-IN-PRODUCTION-0123456789", "x" * 40, "   "],
)  # fmt: skip
def test_placeholders_are_refused(tmp_path, name, value):
    with pytest.raises(BadInput, match=f"ULAK_{name}"):
        load(tmp_path, **{name: value})


@pytest.mark.parametrize(
    "value",
    ["short", f"{secrets.new_secret()}x", "with a space in the middle of it all", "ş" * 40,
     "eyJ0123456789.0123456789.0123456789"],
    ids=["short", "mistyped", "spaces", "no ascii", "a token"],
)  # fmt: skip
def test_what_cannot_be_an_admin_key_is_refused(tmp_path, value):
    with pytest.raises(BadInput, match="ULAK_ADMIN_KEY"):
        load(tmp_path, ADMIN_KEY=value)


def test_secrets_are_never_part_of_a_repr(tmp_path):
    found = load(tmp_path, SECRET=SECRET, ADMIN_KEY=ADMIN_KEY)
    assert (found.secret, found.admin_key) == (SECRET, ADMIN_KEY)
    assert SECRET not in repr(found)
    assert ADMIN_KEY not in repr(found)
    assert (found.shown("secret"), found.shown("admin_key")) == ("set", "set")
    assert load(tmp_path).shown("secret") == "not set"


# --- the secret -----------------------------------------------------------------


def test_in_dev_a_secret_is_made_once_and_only_its_owner_reads_it(tmp_path, engine):
    found = load(tmp_path)
    one, two = identity_of(engine, found), identity_of(engine, found)
    one.create_user("ada", "correct horse", roles=["viewer"], actor="root")
    token = one.login("ada", "correct horse").token
    assert two.authenticate(token).name == "ada"
    file = tmp_path / "data" / "secrets.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert (file.parent / ".gitignore").read_text() == "*\n"
    assert sorted(p.name for p in file.parent.iterdir()) == [".gitignore", "secrets.json"]


def test_processes_that_begin_at_once_have_the_same_secret(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: kept_secret(tmp_path / "data"), range(8)))
    assert len(made) == 1
    assert len(made.pop()) >= 32


def test_a_looser_mode_is_mended_with_a_warning(tmp_path, caplog):
    secret = kept_secret(tmp_path)
    file = tmp_path / "secrets.json"
    file.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert kept_secret(tmp_path) == secret
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "others could read the secrets" in caplog.text
    assert secret not in caplog.text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"secret": 7}', '{"secret": "short"}', "\x00"])
def test_a_file_that_holds_no_secret_is_refused_with_the_cure(tmp_path, text):
    file = tmp_path / "secrets.json"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(BadInput, match=r"secrets\.json holds no secret of ulak; delete it"):
        kept_secret(tmp_path)


def test_a_folder_that_cannot_be_used_is_refused_with_the_cure(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(BadInput, match="set ULAK_DATA to a folder of yours, or ULAK_SECRET"):
        kept_secret(tmp_path / "data")


def test_in_production_a_secret_must_be_set(tmp_path, engine):
    with pytest.raises(BadInput, match="ULAK_SECRET is not set: in production it must be"):
        identity_of(engine, load(tmp_path, ENV="production"))
    assert not os.path.exists(tmp_path / "data")


# --- the first admin key ----------------------------------------------------------


@pytest.mark.parametrize("key", [ADMIN_KEY, secrets.new_secret()], ids=["own", "ulak"])
@pytest.mark.parametrize("at_start", [True, False])
def test_the_first_admin_key_is_stored_once_at_start_or_when_it_is_used(
    tmp_path, engine, key, at_start
):
    found = load(tmp_path, SECRET=SECRET, ADMIN_KEY=key)
    identity = identity_of(engine, found)
    if at_start:
        identity.adopt_first_key()
        assert len(identity.keys()) == 1
    assert is_known(identity, key)
    assert is_known(identity_of(engine, found), key)
    (stored,) = identity.keys()
    assert (stored.name, stored.roles) == ("admin", ("admin",))
    (line,) = engine.inspect.audit()
    assert (line.actor, line.act) == ("admin", "created")


def test_an_admin_key_that_was_revoked_stays_revoked(tmp_path, engine):
    found = load(tmp_path, SECRET=SECRET, ADMIN_KEY=ADMIN_KEY)
    identity = identity_of(engine, found)
    identity.adopt_first_key()
    identity.revoke_key(secrets.id_of(ADMIN_KEY), actor="ada")
    assert not is_known(identity_of(engine, found), ADMIN_KEY)
