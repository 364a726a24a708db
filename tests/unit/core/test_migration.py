"""Which maps from one version of a flow to another can be followed."""

from datetime import timedelta
from typing import Any

import pytest

from ulak import Flow, Lifecycle
from ulak.core.migration import Migration, check, with_same_states
from ulak.errors import BadInput


def work(run: Any) -> None: ...


def parcel(version: int = 2, *, proofs: bool = False) -> Flow[Any]:
    """A flow with a state of every kind."""
    moves = {
        "new": ["asked"],
        "asked": ["resting", "done"],
        "resting": ["waiting"],
        "waiting": ["sent"],
        "sent": ["sending"],
        "sending": ["done"],
    }
    flow: Flow[Any] = Flow("parcel", Lifecycle("new", moves), version=version, proofs=proofs)
    flow.stage("new")(work)
    flow.gate("asked", choices={"go": "resting", "no": "done"})
    flow.wait("resting", on_expiry="waiting", after=timedelta(hours=1))
    flow.wait("waiting", signal="paid", to="sent")
    flow.stage("sent", during="sending", to="done")(work).undo(work)
    return flow


def migration(states: dict[str, str], **more: Any) -> Migration:
    return Migration(more.pop("target", parcel()), from_version=1, states=states, **more)


@pytest.mark.shows("E-50")
@pytest.mark.parametrize(
    ("role", "new"),
    [
        ("ready", "new"), ("ready", "waiting"), ("ready", "asked"), ("busy", "sending"),
        ("busy", "sent"), ("waiting", "resting"), ("waiting", "new"), ("held", "asked"),
        ("held", "held"), ("undoing", "sent"), ("failed", "failed"), ("done", "done"),
    ],
)  # fmt: skip
def test_work_goes_where_work_goes_on_and_an_end_to_the_same_end(role: str, new: str) -> None:
    check(migration({"old": new}), [("old", role)])


@pytest.mark.shows("E-50")
@pytest.mark.parametrize(
    ("role", "new", "said"),
    [
        ("done", "new", "has ended"),
        ("failed", "done", "has ended"),
        ("ready", "done", "ulak jobs cancel"),
        ("ready", "held", "ulak jobs cancel"),
        ("waiting", "sending", "only a claim enters"),
        ("held", "new", "decide or release"),
        ("undoing", "done", "undos run"),
    ],
)
def test_a_role_that_does_not_fit_is_refused(role: str, new: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refusal:
        check(migration({"old": new}), [("old", role)])
    assert f'"old" are {role}' in str(refusal.value)


@pytest.mark.shows("E-50")
def test_a_state_that_the_program_does_not_have_is_refused() -> None:
    with pytest.raises(BadInput, match='parcel version 2 has no state "posted"; it has "new"'):
        check(migration({"old": "posted"}), [("old", "ready")])
    with pytest.raises(BadInput, match='parcel version 1 has no state "old"'):
        check(migration({"old": "new"}, source=parcel(1)), [])


@pytest.mark.shows("E-50")
def test_a_state_that_the_map_leaves_out_is_refused_unless_it_is_served_or_has_ended() -> None:
    standing = [("new", "ready"), ("old", "ready"), ("failed", "failed")]
    with pytest.raises(BadInput, match='stand in "new", which the map leaves out') as refusal:
        check(migration({"old": "new"}), standing)
    assert "--map OLD=NEW" in str(refusal.value)
    assert "--same" in str(refusal.value)
    check(migration({"new": "new"}, source=parcel(1)), [("new", "ready"), ("sent", "ready")])
    same = with_same_states(migration({"old": "new"}), standing)
    assert same == {"new": "new", "old": "new"}, "what has ended stays unless it is named"
    check(migration(same), standing)


@pytest.mark.shows("E-50")
def test_within_one_version_only_what_it_lacks_is_moved() -> None:
    target = parcel(1)
    within = migration({"old": "sent"}, target=target, source=target)
    check(within, [("old", "ready"), ("new", "ready")])
    assert not within.concerns("new", "ready")
    assert within.concerns("new", "waiting"), "the same word for something else"
    with pytest.raises(BadInput, match='has "new" itself'):
        check(migration({"new": "sent"}, target=target, source=target), [("new", "ready")])
    with pytest.raises(BadInput, match='stand in "old", which the map leaves out'):
        check(migration({}, target=target, source=target), [("old", "ready")])


def test_jobs_that_began_without_proofs_do_not_go_to_a_version_with_them() -> None:
    with pytest.raises(BadInput, match="began without"):
        check(migration({"new": "new"}, target=parcel(proofs=True), source=parcel(1)), [])
