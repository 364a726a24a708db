"""What adaptive control costs, and what it does for a service that is overrun."""

from bench.control.ticks import ticks_figures
from bench.guard import guard_figure
from bench.measure import Figure


def control_figures() -> list[Figure]:
    """Measure what the guard adds to a request, and what a tick takes."""
    return [guard_figure(), *ticks_figures()]


__all__ = ["control_figures"]
