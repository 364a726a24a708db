"""`ulak flows migrate`: jobs go to another version by a map that an operator has typed."""

import sys

import pytest

from ulak.store.protocol import ClaimRequest, Want

NEXT = """
import ulak

engine = ulak.connect("sqlite:///shop.db")
claim = ulak.Flow(
    "claim",
    ulak.Lifecycle(
        "filed", {"filed": ["granted", "refused"], "granted": ["paid"]}, done=["paid", "refused"]
    ),
    version=2,
)
claim.gate("filed", choices={"approve": "granted", "refuse": "refused"})


@claim.stage("granted")
def pay(run):
    return run.payload["amount"]


engine.add(claim)
"""
CLAIM = {"who": "ada", "amount": 1, "iban": "x"}
MIGRATE = ("flows", "migrate", "claim", "--from", "1")


@pytest.fixture
def jobs(shop, tmp_path, monkeypatch):
    """Two jobs at a gate that the next program calls otherwise."""
    monkeypatch.delitem(sys.modules, "claims_next", raising=False)
    (tmp_path / "claims_next.py").write_text(NEXT)
    return [shop.submit("claim", CLAIM) for _ in range(2)]


@pytest.mark.shows("E-50")
def test_doctor_names_the_command_that_moves_what_it_lists(shop, jobs):
    document = shop.run("doctor", "--before-deploy", "--json", "-a", "claims_next:engine").document
    (trouble,) = document["troubles"]
    assert "ulak flows migrate claim --from 1 --map requested=NEW" in trouble["sentence"]
    assert shop.run(*MIGRATE, "--map", "requested=filed", "-a", "claims_next:engine").code == 0
    assert shop.run("doctor", "--before-deploy", "-a", "claims_next:engine").code == 0


@pytest.mark.shows("E-50")
def test_a_dry_run_counts_and_a_run_moves_and_says_who(shop, jobs):
    later = ("--map", "requested=filed", "-a", "claims_next:engine")
    dry = shop.run(*MIGRATE, "--dry-run", "--json", *later)
    assert (dry.code, dry.document["dry_run"]) == (0, True)
    assert dry.document["moved"] == [{"from": "requested", "to": "filed", "jobs": 2}]
    shown = shop.run("jobs", "list", "--json", "-a", "claims_next:engine").document["jobs"]
    assert {job["state"] for job in shown} == {"requested"}
    answer = shop.run(*MIGRATE, "--actor", "eve", "--note", "release 2", *later)
    assert (answer.code, answer.err) == (0, "")
    assert "moved 2 jobs of claim from version 1 to 2" in answer.out
    trail = shop.run("jobs", "trail", jobs[0], "--json", "-a", "claims_next:engine").document[
        "events"
    ]
    last = trail[-1]
    said = [last[name] for name in ("kind", "actor", "message", "from_state", "to_state")]
    assert said == ["migrated", "eve", "release 2", "requested", "filed"]
    assert last["details"] == {"from_version": 1, "to_version": 2}
    again = shop.run(*MIGRATE, "--json", *later)
    assert (again.code, again.document["moved"]) == (0, [])
    assert shop.run("verify", "-a", "claims_next:engine").code == 0


@pytest.mark.shows("E-50")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--map", "requested"], "is not OLD=NEW"),
        (["--map", "requested=filed", "--map", "requested=granted"], "say one"),
        (["--map", "requested=elsewhere"], 'has no state "elsewhere"'),
        (["--map", "requested=paid"], "decide or release"),
        (["--same"], 'stand in "requested", which the map leaves out'),
        (["--map", "requested=filed", "--to", "3"], "in version 2, not in 3"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused_in_a_sentence(shop, jobs, more, said):
    answer = shop.run(*MIGRATE, *more, "-a", "claims_next:engine")
    assert answer.code != 0
    assert said in " ".join(answer.err.replace("│", " ").split())
    shown = shop.run("jobs", "list", "--json", "-a", "claims_next:engine").document["jobs"]
    assert {job["version"] for job in shown} == {1}


@pytest.mark.shows("E-50")
def test_what_runs_is_left_and_the_command_says_so(shop, tmp_path):
    shop.submit("greet", "ada")
    (tmp_path / "greet_next.py").write_text(
        'import ulak\nengine = ulak.connect("sqlite:///shop.db")\n'
        "@engine.job(version=2)\ndef greet(name: str) -> str: return name\n"
    )
    import shop as program

    with program.engine as engine:
        lanes = tuple(lane for flow in engine.inspect.flows for lane in flow.table.lanes)
        engine.store.register("w1", lease_us=60_000_000, lanes=lanes, about="here")
        assert engine.store.claim(ClaimRequest("w1", (Want(lanes, 1),))).claims
    migrate = ("flows", "migrate", "greet", "--from", "1", "--same", "-a", "greet_next:engine")
    answer = shop.run(*migrate)
    assert answer.code == 1
    assert "moved 0 jobs" in answer.out
    assert "left alone: 1 job, leased by a worker" in answer.err
