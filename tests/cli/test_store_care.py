"""`ulak verify`, `migrate`, `prune`, `flows`, `outbox`."""

import sqlite3

import pytest

from ulak.cli import store
from ulak.store.protocol import Settled


def test_a_sound_store_is_verified_and_a_damaged_one_is_not(shop, tmp_path):
    job = shop.submit("greet", "ada")
    shop.work()
    sound = shop.ulak("verify")
    assert sound.code == 0
    assert sound.out.startswith("1 job:")
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("UPDATE jobs SET state = 'elsewhere'")
    db.close()
    damaged = shop.ulak("verify")
    assert damaged.code == 1
    assert job in damaged.out
    found = shop.ulak("verify", "--json")
    assert found.code == 1
    assert found.document["findings"][0]["job_id"] == job


def test_migrate_tells_both_versions(shop):
    assert shop.ulak("migrate", "--json").document["before"] == 0
    newest = shop.ulak("migrate", "--json").document
    assert newest["before"] == newest["after"] > 0
    assert "nothing to do" in shop.ulak("migrate").out


@pytest.mark.shows("E-52")
def test_prune_removes_what_ended_in_batches_with_a_pause_and_keeps_what_goes_on(shop, monkeypatch):
    for name in "abc":
        shop.submit("greet", name)
    shop.work()
    waiting = shop.submit("greet", "later")
    pauses: list[float] = []
    monkeypatch.setattr(store.time, "sleep", pauses.append)
    assert shop.ulak("prune", "--older-than", "1d", "--json").document["pruned"] == 0
    assert shop.ulak("prune", "--older-than", "0s", "--batch", "2").out.startswith("pruned 3 jobs")
    assert pauses == [store.PAUSE_S] * 2, "one after each batch, for whoever wants to write"
    left = shop.ulak("jobs", "list", "--json").document["jobs"]
    assert [job["id"] for job in left] == [waiting]


@pytest.mark.parametrize("span", ["30", "", "d", "-1d", "1y", "9999999d", "\u0661d", "1e9d"])
def test_a_span_that_is_none_is_refused(shop, span):
    answer = shop.ulak("prune", f"--older-than={span}")
    assert answer.code == 2
    assert "--older-than" in answer.err


def test_flows_are_told_without_a_store(shop, tmp_path):
    said = shop.ulak("flows")
    assert said.code == 0
    for word in ("claim", "requested, approved, refused, paid", "nap/loop", "greet/thread"):
        assert word in said.out
    document = shop.ulak("flows", "--json").document
    states = {flow["flow"]: flow["states"] for flow in document["flows"]}
    assert states["claim"]["requested"] == "held"
    assert not (tmp_path / "shop.db").exists()


def test_a_flow_is_drawn(shop):
    drawn = shop.ulak("flows", "--mermaid", "claim").out
    assert drawn.startswith("stateDiagram-v2\n")
    assert "approve" in drawn
    unknown = shop.ulak("flows", "--mermaid", "claim@7")
    assert unknown.code == 1
    assert "claim@7" in unknown.err


def test_dead_messages_are_listed_and_revived(shop, tmp_path):
    (tmp_path / "post.py").write_text(
        "import ulak\n"
        'engine = ulak.connect("sqlite:///shop.db")\n'
        "def write(run): run.emit('letter', {})\n"
        'flow = engine.add(ulak.Flow.steps("post", write))\n'
    )
    import asyncio

    import post

    with post.engine as engine:
        job = engine.submit(post.flow)
        asyncio.run(engine.worker().run(until_idle=True))
        taken = engine.store.take_messages("", 1, hold_us=1)[0].message
        engine.store.settle_messages([Settled(taken, "", "dead")])
    name = f"{job.id}/{taken.seq}/{taken.n}"
    assert name in shop.ulak("outbox", "dead").out
    assert shop.ulak("outbox", "dead", "--json").document["messages"][0]["id"] == name
    assert shop.ulak("outbox", "revive").code == 2
    assert shop.ulak("outbox", "revive", f"{job.id}/9/9").code == 1
    assert shop.ulak("outbox", "revive", name).out.startswith("revived 1 message")
    assert shop.ulak("outbox", "dead", "--json").document["messages"] == []
