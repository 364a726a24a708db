"""Publishing as a whole system: its figures, its profile, and what tests break it with."""

from bench.publishing.figures import (
    postgres_publishing_figures,
    publishing_figures,
    relay_figures,
)

__all__ = ["postgres_publishing_figures", "publishing_figures", "relay_figures"]
