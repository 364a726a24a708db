"""Every store keeps every promise of `ulak.store.protocol`."""

from ulak.testing.conformance import (  # noqa: F401 - pytest collects the classes from here
    TestAwkwardData,
    TestClaims,
    TestCommits,
    TestFeatures,
    TestIntake,
    TestLeases,
    TestOutbox,
    TestProcesses,
    TestProofs,
    TestReading,
    TestRequests,
    TestSchedules,
    TestSlots,
    TestUpkeep,
)
