"""For tests of programs and of stores: a clock that is turned by hand, and the conformance suite.

`ulak.testing.conformance` holds any store to the promises of `ulak.store.protocol`; it alone
needs pytest, so it is imported by name.
"""

from ulak.clock import ManualClock

__all__ = ["ManualClock"]
