"""Every store keeps every promise of `ulak.store.protocol`."""

from ulak.testing.conformance import (  # noqa: F401 - pytest collects the classes from here
    TestAwkwardData,
    TestClaims,
    TestCommits,
    TestFairness,
    TestFeatures,
    TestIntake,
    TestLeases,
    TestLimits,
    TestOutbox,
    TestPauses,
    TestProcesses,
    TestProofs,
    TestRaces,
    TestRates,
    TestReading,
    TestRequests,
    TestSchedules,
    TestSlots,
    TestSteeredProcesses,
    TestUpkeep,
)
