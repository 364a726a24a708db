"""The picture of a lifecycle is generated, so that it cannot lie."""

import pytest

from tests.unit.core.machine import HOUR, two_steps, work
from ulak.core.flow import Flow
from ulak.core.lifecycle import Lifecycle


def ship(run: object) -> None: ...


@pytest.mark.shows("E-8")
def test_steps_are_printed_as_an_ordinary_lifecycle() -> None:
    flow: Flow = Flow.steps("mail", work, ship)
    assert flow.mermaid() == (
        "stateDiagram-v2\n"
        '    state "work (ready)" as s0\n'
        '    state "ship (ready)" as s1\n'
        '    state "done (done)" as s2\n'
        "    [*] --> s0\n"
        "    s0 --> s1 : work\n"
        "    s1 --> s2 : ship\n"
        "    s2 --> [*]\n"
    )


def test_a_gate_shows_its_choices_and_its_deadline_and_a_wait_its_signal_and_its_time() -> None:
    flow: Flow = Flow(
        "f",
        Lifecycle("ask", {"ask": ["wait", "no"], "wait": ["done", "no"]}, done=["done", "no"]),
    )
    flow.gate(
        "ask", choices={"yes": "wait", "refuse": "no"}, deadline=HOUR, on_expiry="no"
    )  # fmt: skip
    flow.wait("wait", signal="paid", to="done", deadline=HOUR, on_expiry="no")
    drawn = flow.mermaid().splitlines()
    assert "    s0 --> s1 : yes" in drawn
    assert "    s0 --> s2 : refuse, deadline" in drawn
    assert "    s1 --> s3 : paid" in drawn
    assert "    s1 --> s2 : time" in drawn
    assert '    state "ask (held)" as s0' in drawn


def test_a_busy_state_is_entered_without_a_label_and_left_by_its_function() -> None:
    flow: Flow = Flow("f", Lifecycle("a", {"a": ["busy"], "busy": ["done"]}))
    flow.stage("a", during="busy")(ship)
    drawn = flow.mermaid().splitlines()
    assert "    s0 --> s1" in drawn
    assert "    s1 --> s2 : ship" in drawn


def test_undos_are_named_in_a_note() -> None:
    drawn = two_steps("ab").mermaid()
    assert "note right of s0\n        undone in reverse order, if started - a, b" in drawn
    assert "note" not in two_steps().mermaid()


def test_every_declared_move_is_drawn_once() -> None:
    flow = two_steps()
    arrows = [line for line in flow.mermaid().splitlines() if "-->" in line and "[*]" not in line]
    assert len(arrows) == sum(len(ways) for ways in flow.lifecycle.moves.values())


def test_every_unfinished_state_may_move_to_the_ends_and_a_failed_job_back() -> None:
    def after(state: str) -> set[str]:
        return {to for origin, to in two_steps().table.legal if origin == state}

    assert after("a") == {"b", "cancelled", "expired", "failed", "held"}
    assert after("failed") == {"a", "b"}
    assert after("done") == set()
