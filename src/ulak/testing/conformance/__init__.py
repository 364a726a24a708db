"""The conformance suite: every promise of `ulak.store.protocol`, for any store.

A store of your own is held to them by a test module that imports these classes,

    from ulak.testing.conformance import *

and a `conftest.py` with two fixtures:

    pytest.register_assert_rewrite("ulak.testing.conformance")

    @pytest.fixture
    def store(tmp_path):                    # fresh, open, on a ManualClock that stands still
        store = MyStore(tmp_path / "jobs", clock=ManualClock())
        store.open()
        yield store
        store.close()

    @pytest.fixture
    def reopen(tmp_path):                   # the same store once more, here or in a child
        return Reopen(open_my_store, str(tmp_path / "jobs"))

The marker `shows` names requirements of ulak's own specification; declare it where markers are
strict. What a store cannot do it says in its `Features`, and the suite reads them.
"""

from ulak.testing.conformance.awkward import TestAwkwardData
from ulak.testing.conformance.awkward_records import TestAwkwardRecords
from ulak.testing.conformance.claims import TestClaims
from ulak.testing.conformance.commits import TestCommits
from ulak.testing.conformance.credentials import TestCredentials
from ulak.testing.conformance.deliveries import TestDeliveries
from ulak.testing.conformance.desk import Desk, Reopen, Suite
from ulak.testing.conformance.fairness import TestFairness
from ulak.testing.conformance.features import TestFeatures
from ulak.testing.conformance.filters import TestFilters
from ulak.testing.conformance.followers import TestFollowers
from ulak.testing.conformance.intake import TestIntake
from ulak.testing.conformance.leases import TestLeases
from ulak.testing.conformance.limits import TestLimits
from ulak.testing.conformance.open_transactions import TestOpenTransactions
from ulak.testing.conformance.outbox import TestOutbox
from ulak.testing.conformance.owners import TestOwners
from ulak.testing.conformance.pauses import TestPauses
from ulak.testing.conformance.processes import TestProcesses
from ulak.testing.conformance.proofs import TestProofs
from ulak.testing.conformance.quick_transactions import TestLoopTransactions, TestPartedTransactions
from ulak.testing.conformance.races import TestRaces
from ulak.testing.conformance.rates import TestRates
from ulak.testing.conformance.reading import TestReading
from ulak.testing.conformance.record_races import TestRecordRaces
from ulak.testing.conformance.records import TestRecords
from ulak.testing.conformance.requests import TestRequests
from ulak.testing.conformance.schedules import TestSchedules
from ulak.testing.conformance.slots import TestSlots
from ulak.testing.conformance.standing import TestStanding
from ulak.testing.conformance.state_slots import TestStateSlots
from ulak.testing.conformance.steered_processes import TestSteeredProcesses
from ulak.testing.conformance.stops import TestStops
from ulak.testing.conformance.transactions import TestStageTransactions
from ulak.testing.conformance.upkeep import TestUpkeep

__all__ = [
    "Desk",
    "Reopen",
    "Suite",
    "TestAwkwardData",
    "TestAwkwardRecords",
    "TestClaims",
    "TestCommits",
    "TestCredentials",
    "TestDeliveries",
    "TestFairness",
    "TestFeatures",
    "TestFilters",
    "TestFollowers",
    "TestIntake",
    "TestLeases",
    "TestLimits",
    "TestLoopTransactions",
    "TestOpenTransactions",
    "TestOutbox",
    "TestOwners",
    "TestPartedTransactions",
    "TestPauses",
    "TestProcesses",
    "TestProofs",
    "TestRaces",
    "TestRates",
    "TestReading",
    "TestRecordRaces",
    "TestRecords",
    "TestRequests",
    "TestSchedules",
    "TestSlots",
    "TestStageTransactions",
    "TestStanding",
    "TestStateSlots",
    "TestSteeredProcesses",
    "TestStops",
    "TestUpkeep",
]
