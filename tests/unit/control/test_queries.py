"""What is measured is fixed, to the letter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulak.control.config import AdaptiveControlConfig
from ulak.control.queries import CONFIG_DRIFT, GUARD_SIGNAL, PDF_SIGNAL, find_drift

GUARD = "histogram_quantile(0.95, rate(http_request_duration_seconds_bucket[5m]))"
PDF = "histogram_quantile(0.95, rate(pdf_render_duration_seconds_bucket[5m]))"


def drift(guard: str = GUARD, pdf: str = PDF) -> list[str]:
    return find_drift(AdaptiveControlConfig(guard_slo_query=guard, pdf_slo_query=pdf))


@pytest.mark.shows("A-19")
def test_histogram_method_and_window_are_explicit() -> None:
    for signal, text in ((GUARD_SIGNAL, GUARD), (PDF_SIGNAL, PDF)):
        assert signal.query == text
        minutes = signal.window_ms // 60_000
        assert text == (
            f"histogram_quantile({signal.quantile}, rate({signal.histogram}_bucket[{minutes}m]))"
        )
    assert (GUARD_SIGNAL.subsystem_id, PDF_SIGNAL.subsystem_id) == ("guard", "pdf")


@pytest.mark.shows("A-20")
def test_each_query_that_differs_is_named() -> None:
    assert drift() == []
    assert drift(guard=PDF) == ["guard_slo_query"]
    assert drift(pdf=GUARD) == ["pdf_slo_query"]
    assert drift("", GUARD + " ") == ["guard_slo_query", "pdf_slo_query"]
    assert CONFIG_DRIFT == "config_drift_detected"


def edited(text: str) -> st.SearchStrategy[str]:
    """Return texts that are anything, or one edit away."""
    places, letters = st.integers(0, len(text)), st.characters()
    return (
        st.text()
        | st.builds(lambda i, c: text[:i] + c + text[i:], places, letters)
        | st.builds(lambda i: text[:i] + text[i + 1 :], places)
        | st.just(text)
    )


@given(edited(GUARD), edited(PDF))
@settings(max_examples=200)
@pytest.mark.shows("A-P10", "A-20")
def test_only_the_canonical_queries_are_no_drift(guard: str, pdf: str) -> None:
    """Feature: slo-adaptive-control, Property 10: only the canonical query is no drift"""
    expected = [
        name
        for name, differs in (("guard_slo_query", guard != GUARD), ("pdf_slo_query", pdf != PDF))
        if differs
    ]
    assert drift(guard, pdf) == expected
