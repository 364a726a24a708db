"""What every store shares about stops of the intake."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ulak.core.admission import StopRow

Pair = tuple[str, str]
"""A flow and a tenant."""
Stops = Mapping[Pair, StopRow]
NO_STOPS: Final[Stops] = MappingProxyType({})
