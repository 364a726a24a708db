"""Publishing as a whole system: its figures, its profile, and what tests break it with."""

from bench.publishing.figures import publishing_figures

__all__ = ["publishing_figures"]
