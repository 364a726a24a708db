"""`ulak bench`: it measures a store, and leaves it as it was."""

from pathlib import Path

import pytest

import ulak


def engine_at(url: str) -> ulak.Engine:
    engine = ulak.connect(url)

    @engine.job
    def greet() -> None: ...

    return engine


@pytest.mark.timeout(120)
def test_it_measures_a_new_file_which_is_gone_afterwards(run, tmp_path):
    found = run("bench", "--quick", "--json").document
    assert found["store"] == "sqlite"
    rates = [value for name, value in found.items() if name.endswith("_per_s")]
    assert len(rates) == 4
    assert all(rate > 0 for rate in rates)
    for delay in (found["pickup_ms"], found["claim_ms"]):
        assert 0 < delay["p50"] <= delay["p99"]
    assert list(Path(tmp_path).iterdir()) == []


@pytest.mark.timeout(120)
def test_it_measures_postgresql_and_removes_its_own_jobs(run, postgres_url):
    answer = run("bench", "--quick", "--store", postgres_url)
    assert answer.code == 0
    assert "on postgres" in answer.out
    assert "pickup" in answer.out
    with ulak.connect(postgres_url) as engine:
        assert engine.jobs() == []


def test_a_store_with_jobs_of_others_is_refused(run, tmp_path):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    with engine_at(url) as engine:
        job = engine.submit(engine.inspect.flows[0])
    refused = run("bench", "--quick", "--store", url)
    assert refused.code == 1
    assert "1 job and 0 workers" in refused.err
    assert "--force" in refused.err
    with engine_at(url) as engine:
        assert [other.id for other in engine.jobs()] == [job.id]


@pytest.mark.timeout(120)
def test_by_force_it_runs_beside_them_and_touches_none(run, tmp_path):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    with engine_at(url) as engine:
        job = engine.submit(engine.inspect.flows[0])
    answer = run("bench", "--quick", "--force", "--store", url)
    assert answer.code == 0
    assert "are left in the store" in answer.err
    with engine_at(url) as engine:
        assert engine.get(job.id) == job
        assert {j.role for j in engine.jobs(limit=5000) if j.id != job.id} == {"done"}


def test_a_store_of_one_process_is_refused(run):
    refused = run("bench", "--store", "memory://")
    assert refused.code == 1
    assert "one process" in refused.err
