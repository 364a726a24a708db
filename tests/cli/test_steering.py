"""`ulak limits`, `rates`, `pause`, `resume`, `pauses`, `weights`, `audit`."""

import sys

import pytest

STEERED = """
from datetime import timedelta

import ulak
from ulak import Limit, Rate

engine = ulak.connect("sqlite:///steered.db")


@engine.job(limit=Limit(2, key=lambda payload: payload["args"][0]), fair=True)
def send(customer: str) -> None: ...


@engine.job(rate=Rate(5, per=timedelta(seconds=1)))
def call(n: int) -> None: ...
"""


@pytest.fixture
def ulak(tmp_path, run, monkeypatch):
    (tmp_path / "steered.py").write_text(STEERED)
    sys.path.insert(0, str(tmp_path))
    monkeypatch.delitem(sys.modules, "steered", raising=False)
    return lambda *arguments: run(*arguments, "-a", "steered:engine")


@pytest.mark.shows("E-60")
def test_a_limit_is_set_listed_and_reset(ulak):
    assert "2 for each key" in ulak("limits").out
    said = ulak("limits", "set", "send/queued", "7", "--actor", "ada", "--note", "more", "--json")
    assert (said.document["n"], said.document["actor"]) == (7, "ada")
    (limit,) = ulak("limits", "--json").document["limits"]
    assert (limit["n"], limit["declared"], limit["keyed"]) == (7, 2, True)
    assert ulak("limits", "set", "send/queued", "--reset", "--json").document["n"] == 2
    wrong = ulak("limits", "set", "send/other", "7")
    assert wrong.code != 0
    assert 'there is no limit "send/other"; there are "send/queued"' in wrong.err
    assert ulak("limits", "set", "send/queued").code != 0


@pytest.mark.shows("E-60")
def test_a_rate_is_set_listed_and_reset(ulak):
    assert "5 in 1 s, 5 at most" in ulak("rates").out
    ulak("rates", "set", "call/queued", "60", "--per", "1m", "--burst", "3", "--actor", "ada")
    (rate,) = ulak("rates", "--json").document["rates"]
    assert (rate["n"], rate["per_s"], rate["burst"], rate["actor"]) == (60, 60.0, 3, "ada")
    assert rate["declared"] == {"n": 5, "per_s": 1.0, "burst": 5}
    ulak("rates", "set", "call/queued", "--reset")
    assert ulak("rates", "--json").document["rates"][0]["actor"] is None


@pytest.mark.shows("E-60")
def test_a_flow_is_paused_and_resumed(ulak):
    assert "nothing is paused" in ulak("pauses").err
    made = ulak("pause", "--flow", "send", "--for", "1h", "--actor", "ada", "--note", "a leak")
    assert "flow send" in made.out
    again = ulak("pause", "--flow", "send", "--actor", "bob")
    assert "by ada" in again.out
    (pause,) = ulak("pauses", "--json").document["pauses"]
    assert (pause["kind"], pause["name"], pause["until"], pause["actor"]) == (
        "flow", "send", None, "bob",
    )  # fmt: skip
    assert "bob had paused it" in ulak("resume", "--flow", "send").out
    wrong = ulak("resume", "--flow", "send")
    assert wrong.code != 0
    assert 'the flow "send" is not paused' in wrong.err
    assert (
        'there is no flow "sned"; there are "call" or "send"' in ulak("pause", "--flow", "sned").err
    )
    assert "say one of queue=, flow= and key=" in ulak("pause").err
    for ends in ("2999-01-31T12:00:00Z", "2999-01-31T15:00:00+03:00", "2999-01-31T12:00:00"):
        until = ulak("pause", "--flow", "send", "--until", ends, "--json").document["until"]
        assert until.startswith("2999-01-31T12:00:00")
    assert "'noon' is not a time; write" in ulak("pause", "--flow", "send", "--until", "noon").err


@pytest.mark.shows("E-60")
def test_weights_are_set_and_everything_is_audited(ulak):
    ulak("weights", "set", "gold", "3", "--actor", "ada", "--note", "pays more")
    assert ulak("weights", "--json").document["weights"][0]["weight"] == 3
    assert "gold" in ulak("weights").out
    ulak("weights", "set", "gold", "--reset", "--actor", "bob")
    lines = ulak("audit", "--subject", "gold", "--json").document["audit"]
    assert [(line["actor"], line["act"], line["note"]) for line in lines] == [
        ("bob", "weight", None), ("ada", "weight", "pays more"),
    ]  # fmt: skip
    assert "pays more" in ulak("audit").out
