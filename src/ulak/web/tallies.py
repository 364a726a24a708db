"""Tallies as routes count with them; `ulak.control.tallies` has all of them."""

from ulak.control.tallies import ALONE, OTHER, Counter

__all__ = ["ALONE", "OTHER", "Counter"]
