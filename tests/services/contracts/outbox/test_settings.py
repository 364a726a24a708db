"""Bad combinations are refused at start, with what would work."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import ulak
from ulak.errors import BadInput
from ulak.services.contracts.configuration import contracts_of
from ulak.services.contracts.contracts import TRANSITION
from ulak.services.contracts.outbox.settings import load

REMOTE = {"HOS_BASE_URL": "https://hos.example.org/", "HOS_API_KEY": "k-123456789"}


def test_without_a_word_there_is_no_remote() -> None:
    found = load({})
    assert (found.mode, found.timeout, found.retries) == (
        "embedded", timedelta(milliseconds=1500), 1,
    )  # fmt: skip


def test_every_variable_is_read() -> None:
    found = load(
        {**REMOTE, "HOS_MODE": "hybrid", "HOS_TIMEOUT_MS": "250", "HOS_RETRIES": "0",
         "HOS_REMOTE_TTL_SECONDS": "864000", "HOS_KEY_PREFIX": "shop-7"}
    )  # fmt: skip
    assert (found.mode, found.base_url) == ("hybrid", "https://hos.example.org")
    assert (found.timeout, found.retries) == (timedelta(milliseconds=250), 0)
    assert (found.ttl, found.key_prefix) == (timedelta(days=10), "shop-7")


@pytest.mark.shows("I-57")
@pytest.mark.parametrize("mode", ["hybrid", "remote"])
def test_a_mode_with_a_remote_needs_the_remote(mode: str) -> None:
    with pytest.raises(BadInput, match="HOS_BASE_URL and HOS_API_KEY; set them, or HOS_MODE=emb"):
        load({"HOS_MODE": mode})
    with pytest.raises(BadInput, match=f"HOS_MODE={mode} needs HOS_API_KEY; set it"):
        load({"HOS_MODE": mode, "HOS_BASE_URL": "http://localhost:8001"})
    assert load({"HOS_MODE": mode, **REMOTE}).mode == mode


@pytest.mark.shows("I-25")
def test_a_remote_that_forgets_too_early_is_refused_with_both_numbers() -> None:
    with pytest.raises(BadInput, match=r"259200 s .* 259200 s"):
        load({"HOS_MODE": "hybrid", **REMOTE, "HOS_REMOTE_TTL_SECONDS": "259200"})
    load({"HOS_MODE": "hybrid", **REMOTE, "HOS_REMOTE_TTL_SECONDS": "259201"})


@pytest.mark.shows("I-25")
def test_a_service_that_outboxes_tell_may_not_forget_too_early_either() -> None:
    with pytest.raises(BadInput, match=r"86400 s .* 259200 s"):
        replace(TRANSITION, ttl=timedelta(days=1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOS_MODE", "both"),
        ("HOS_BASE_URL", "hos.example.org"),
        ("HOS_BASE_URL", "ftp://hos.example.org"),
        ("HOS_BASE_URL", "https://hos.example.org:0"),
        ("HOS_BASE_URL", "https://hos.example.org:x"),
        ("HOS_BASE_URL", "https://[hos"),
        ("HOS_BASE_URL", "https://hos.example.org?tenant=a"),
        ("HOS_BASE_URL", "https://user:hunter22@hos.example.org"),
        ("HOS_API_KEY", "two words hunter22"),
        ("HOS_API_KEY", "anahtar-ş-hunter22"),
        ("HOS_TIMEOUT_MS", "0"),
        ("HOS_TIMEOUT_MS", "1.5"),
        ("HOS_TIMEOUT_MS", "60001"),
        ("HOS_KEY_PREFIX", "two words"),
        ("HOS_KEY_PREFIX", "x" * 101),
        ("HOS_RETRIES", "-1"),
        ("HOS_RETRIES", "11"),
        ("HOS_REMOTE_TTL_SECONDS", "9" * 5000),
    ],
    ids=lambda value: value[:40],
)
def test_a_value_that_cannot_be_used_is_named_and_no_secret_is_told(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"^{name}: ") as refused:
        load({name: value})
    assert "hunter22" not in str(refused.value)
    assert len(str(refused.value)) < 200


def test_the_key_is_not_shown_with_the_rest() -> None:
    assert REMOTE["HOS_API_KEY"] not in repr(load({"HOS_MODE": "remote", **REMOTE}))


@pytest.mark.shows("I-25")
def test_contracts_do_not_start_with_answers_that_are_kept_for_too_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = ulak.connect(f"sqlite:///{tmp_path / 'contracts.db'}")
    contracts_of(engine)
    monkeypatch.setenv("IDEMPOTENCY_TTL_SECONDS", "86400")
    with pytest.raises(BadInput, match=r"kept for 86400 s .* tries for 259200 s"):
        contracts_of(engine)
