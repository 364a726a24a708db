"""How cutting is measured, and what harm it takes."""

from bench.cutting.figures import cutting_figures
from bench.cutting.plans import plans_figures

__all__ = ["cutting_figures", "plans_figures"]
