"""Kill switches without a store: what covers what, and since when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulak.control.switches import DEGRADE, GLOBAL, NAMES, KillSwitchManager
from ulak.errors import BadInput, NotFound

SUBSYSTEMS = ("guard", "pdf")


def put(switches: KillSwitchManager, name: str, enabled: bool, at_ms: int = 1) -> None:
    switches.set(name, enabled, actor="ada", reason="a test", now_ms=at_ms)


@pytest.mark.shows("A-33")
@pytest.mark.parametrize(
    ("name", "covered"),
    [(GLOBAL, {"guard", "pdf"}), ("guard", {"guard"}), ("pdf", {"pdf"}), (DEGRADE, set()),
     ("tenant:acme", set())],
)  # fmt: skip
def test_a_switch_suspends_adaptive_control_for_what_it_covers(name, covered):
    switches = KillSwitchManager()
    put(switches, name, True)
    assert {each for each in SUBSYSTEMS if switches.covers(each)} == covered
    assert switches.covers("guard", "acme") == (
        name if covered >= {"guard"} or name == "tenant:acme" else None
    )
    assert (switches.covers("guard", "other") is not None) == ("guard" in covered)


@pytest.mark.shows("A-P20")
@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from([*NAMES, "tenant:acme"]), st.booleans()), min_size=1, max_size=30
    ),
    st.sampled_from(SUBSYSTEMS),
)
def test_the_time_of_a_release_is_that_of_the_last_covering_switch_that_was_turned_off(acts, on):
    """Feature: slo-adaptive-control, Property 20: the time of a release is kept."""
    switches, is_on, released = KillSwitchManager(), {}, {}
    for at_ms, (name, enabled) in enumerate(acts, 1):
        put(switches, name, enabled, at_ms)
        if is_on.get(name, False) and not enabled:
            released[name] = at_ms
        elif enabled and not is_on.get(name, False):
            released.pop(name, None)
        is_on[name] = enabled
    covering = (GLOBAL, on)
    assert switches.released_at(on) == max((released.get(n, 0) for n in covering), default=0)
    assert (switches.covers(on) is not None) == any(is_on.get(n) for n in covering)


@pytest.mark.shows("A-7")
def test_a_repeated_write_changes_neither_the_time_nor_the_person():
    switches = KillSwitchManager()
    new, old = switches.set("pdf", True, actor="ada", reason="it burns", now_ms=5)
    assert (old.enabled, old.updated_at, new.enabled, new.updated_at) == (False, None, True, 5)
    again, before = switches.set("pdf", True, actor="olga", reason="it burns", now_ms=9)
    assert again == before == new
    assert switches.changed_at("pdf") == 5


@pytest.mark.shows("A-7")
@pytest.mark.parametrize(
    "name", ["", "printer", "tenant:", "tenant:a\nb", "Global", "tenant:\ud800"]
)
def test_names_are_of_a_bounded_set(name):
    with pytest.raises(NotFound):
        put(KillSwitchManager(), name, True)


def test_a_switch_wants_a_reason():
    with pytest.raises(BadInput, match="reason"):
        KillSwitchManager().set("pdf", True, actor="ada", reason=" ", now_ms=1)


@pytest.mark.shows("A-7")
def test_all_lists_the_switches_that_were_never_set_too():
    switches = KillSwitchManager(defaults={"guard": True})
    put(switches, "tenant:acme", True)
    listed = {switch.name: switch.enabled for switch in switches.all()}
    assert listed == {
        "global": False, "degrade_mode": False, "guard": True, "pdf": False, "tenant:acme": True
    }  # fmt: skip
