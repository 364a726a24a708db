"""The keys of the workers: made by the script, narrowed, kept in dev, changed while all runs."""

import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

import ulak
from tests.services.publishing.parts import ROOT, Parts
from ulak.auth import Keys
from ulak.errors import Unauthenticated
from ulak.services.publishing.keys import CALLS, FILE, SCOPES, adopt, make_keys, with_kept
from ulak.services.publishing.settings import WORKERS, PublishingSettings, load
from ulak.settings import Settings

NAMES = ["moderation-worker", "preview-worker", "publish-worker", "dlq-worker"]
FORM = re.compile(r"ulak_[a-z0-9]{8}_[0-9A-Za-z]{49}")
SCRIPT = ROOT / "scripts" / "generate_api_keys.py"
PRINTED = re.compile(rf"^({'|'.join(NAMES)}) +(ulak_\S+)$", re.M)


def keys_in(said: str) -> dict[str, str]:
    """The keys that the script has printed, by their names."""
    found = PRINTED.findall(said)
    assert [name for name, _ in found] == NAMES, said
    return dict(found)


def may(engine: ulak.Engine, key: str) -> set[str]:
    """What the holder of a key may do, as a process sees it that has not seen the key before."""
    holder = Keys(engine).authenticate(key)
    return {scope for scope in SCOPES if holder.may(scope)}


@pytest.mark.shows("S-33")
def test_each_key_opens_every_internal_call(site):
    for _, key in make_keys(site.engine, least_privilege=False, actor="ada"):
        assert may(site.engine, key) == set(SCOPES)
        assert site.ask("GET", "/internal/dlq", f"Token {key}").status_code == 200


@pytest.mark.shows("S-33")
def test_a_narrowed_key_opens_the_calls_of_its_worker_and_is_403_elsewhere(site):
    made = dict(make_keys(site.engine, least_privilege=True, actor="ada"))
    assert {name: may(site.engine, key) for name, key in made.items()} == {
        f"{worker}-worker": set(CALLS[worker]) for worker in WORKERS
    }
    post = site.stand("PENDING_PUBLISH")
    path, about = f"/internal/articles/{post.id}", {"publication_id": post.publication_id}
    key = f"Token {made['preview-worker']}"
    wrong = site.ask("POST", f"{path}/approve", key, json=about)
    assert (wrong.status_code, wrong.json()["code"]) == (403, "insufficient_scope")
    assert site.ask("GET", path, key).status_code == 200
    key = f"Token {made['moderation-worker']}"
    assert site.ask("POST", f"{path}/approve", key, json=about).status_code == 200


@pytest.mark.shows("S-31", "S-35", "S-44")
def test_the_script_makes_keys_from_both_places_and_breaks_none(tmp_path, zygote):
    """From the repository, and copied to the working directory of an image; the database is as
    empty as when a system is set up."""
    shutil.copy(SCRIPT, tmp_path)
    with Parts(tmp_path, zygote, DATABASE_URL="sqlite:///posts.db") as parts:
        first = parts.run(f"{sys.executable} {SCRIPT}")
        second = parts.run(f"{sys.executable} generate_api_keys.py --least-privilege")
    assert (first.process.returncode, second.process.returncode) == (0, 0), parts.said()
    made = [*keys_in(first.said).values(), *keys_in(second.said).values()]
    assert len(set(made)) == 8
    assert all(FORM.fullmatch(key) for key in made)
    with ulak.connect(f"sqlite:///{tmp_path}/posts.db") as engine:
        for key in made[:4]:
            assert may(engine, key) == set(SCOPES)
        assert may(engine, made[4]) == set(CALLS["moderation"])


@pytest.mark.shows("S-32")
def test_no_key_is_stored(tmp_path):
    with ulak.connect(f"sqlite:///{tmp_path}/posts.db") as engine:
        made = list(make_keys(engine, least_privilege=False, actor="ada"))
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("posts.db*") if path.is_file())
    for _, key in made:
        assert key.split("_")[1].encode() in stored
        assert key.split("_")[2].encode() not in stored


@pytest.mark.shows("S-31", "S-34")
def test_the_keys_of_the_script_are_listed_rotated_and_revoked_by_ulak_keys(tmp_path, zygote):
    about = {"DATABASE_URL": "sqlite:///posts.db", "ULAK_SERVICE": "publishing"}
    with Parts(tmp_path, zygote, **about) as parts:
        # What the script does, as the test above shows.
        old = keys_in(parts.run("ulak publishing make-keys").said)["dlq-worker"]
        id = old.split("_")[1]
        listed = parts.run("ulak keys list --json").said
        assert [name for name in NAMES if f'"{name}"' not in listed] == []
        assert id in listed
        assert old.split("_")[2] not in listed
        rotated = parts.run(f"ulak keys rotate {id} --overlap 1h").said
        new = FORM.search(rotated)[0]
        with ulak.connect(f"sqlite:///{tmp_path}/posts.db") as engine:
            assert may(engine, old) == may(engine, new) == set(SCOPES)
            assert parts.run(f"ulak keys revoke {id}").process.returncode == 0
            with pytest.raises(Unauthenticated, match="revoked"):
                may(engine, old)
            assert may(engine, new) == set(SCOPES)


@pytest.mark.shows("S-47")
def test_in_dev_keys_are_made_once_and_kept_for_the_owner_alone(tmp_path):
    platform = Settings(data=tmp_path / "data")
    settings, kept = with_kept(load({}), platform)
    again, _ = with_kept(load({}), platform)
    assert again == settings
    assert set(kept) == set(WORKERS)
    assert len({*kept.values(), settings.secret_key}) == 5
    assert settings.internal_api_keys == kept
    assert stat.S_IMODE((tmp_path / "data" / FILE).stat().st_mode) == 0o600
    settings.must_have_secret()
    settings.must_have_keys(*WORKERS)
    with ulak.connect(f"sqlite:///{tmp_path}/posts.db") as engine:
        adopt(engine, kept)
        adopt(engine, kept)
        assert [may(engine, key) for key in kept.values()] == [set(SCOPES)] * 4


def test_what_is_set_wins_over_what_is_kept_and_a_placeholder_is_not_set(tmp_path):
    said = {
        "SECRET_KEY": "s" * 40, "INTERNAL_API_KEY": "change-me-in-production",
        "INTERNAL_API_KEY_DLQ": "d" * 40,
    }  # fmt: skip
    settings, kept = with_kept(load(said), Settings(data=tmp_path))
    assert set(kept) == {"moderation", "preview", "publish"}
    assert settings.secret_key == "s" * 40
    assert settings.internal_api_keys == {**kept, "dlq": "d" * 40}


@pytest.mark.parametrize(
    ("platform", "said"),
    [
        (Settings(env="production"), {}),
        (Settings(), {"SECRET_KEY": "s" * 40, "INTERNAL_API_KEY": "k" * 40}),
    ],
    ids=["production", "everything is set"],
)
def test_nothing_is_kept_where_nothing_is_needed(platform, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings: PublishingSettings = load(said)
    assert with_kept(settings, platform) == (settings, {})
    assert list(Path().iterdir()) == []
