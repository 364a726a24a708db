"""Every store keeps every promise of `ulak.store.protocol`."""

from ulak.testing import conformance
from ulak.testing.conformance import (  # noqa: F401 - pytest collects the classes from here
    TestAwkwardData,
    TestAwkwardRecords,
    TestClaims,
    TestCommits,
    TestCredentials,
    TestDeliveries,
    TestFairness,
    TestFeatures,
    TestFilters,
    TestFollowers,
    TestIntake,
    TestLeases,
    TestLimits,
    TestLoopTransactions,
    TestOpenTransactions,
    TestOutbox,
    TestOwners,
    TestPartedTransactions,
    TestPauses,
    TestProcesses,
    TestProofs,
    TestRaces,
    TestRates,
    TestReading,
    TestRecordRaces,
    TestRecords,
    TestRequests,
    TestSchedules,
    TestSlots,
    TestStageTransactions,
    TestStanding,
    TestStateSlots,
    TestSteeredProcesses,
    TestStops,
    TestUpkeep,
)


def test_every_class_of_the_suite_is_collected_here() -> None:
    suite = {name for name in conformance.__all__ if name.startswith("Test")}
    assert suite - globals().keys() == set()
