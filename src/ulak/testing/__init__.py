"""For tests of programs and of stores.

`Harness` runs flows with a clock that is turned by hand. `ulak.testing.faults` kills a process
at a named point. `ulak.testing.histories` records what clients of protected operations were told,
and `ulak.testing.linearizability` tells whether it can be. `ulak.testing.conformance` holds any
store to the promises of `ulak.store.protocol`; it alone needs pytest, so it is imported by name.
"""

from ulak.clock import ManualClock
from ulak.testing.harness import Harness

__all__ = ["Harness", "ManualClock"]
