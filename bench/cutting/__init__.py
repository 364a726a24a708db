"""How cutting is measured, and what harm it takes."""

from bench.cutting.figures import cutting_figures

__all__ = ["cutting_figures"]
