"""A nightly report per tenant: one job per tenant and night, however often it is asked for.

Run it: `python examples/nightly_report.py`
"""

import logging
import tempfile
from dataclasses import dataclass
from datetime import date, timedelta

import ulak
from ulak import Backoff, Dedup, Lifecycle, Run, Until

TENANTS = ["acme", "globex", "initech"]
SALES = {"acme": [120, 80, 300], "globex": [45], "initech": []}


@dataclass(frozen=True)
class Night:
    day: date


@dataclass(frozen=True)
class Report:
    orders: int
    total: int
    attempts: int


class SourceDown(Exception):
    """The database that the sales come from does not answer."""


def read_sales(tenant: str, attempt: int) -> list[int]:
    """Stand in for a source that fails whoever comes first."""
    if tenant == "globex" and attempt == 1:
        raise SourceDown("connection refused")
    return SALES[tenant]


nightly = ulak.Flow(
    "nightly-report",
    Lifecycle("due", {"due": ["written"]}, done="written"),
    payload=Night,
    # Keys belong to their tenant, so the date is enough. A report that was written keeps its key
    # for good; one that failed gives it back, so that the same night can be asked for again.
    dedup=Dedup(lambda night: night.day.isoformat(), until=Until.FAILED_FOR_GOOD),
    retry=Backoff(3, first=timedelta(milliseconds=50)),
    transient={SourceDown},
)


@nightly.stage("due")
def write_report(run: Run[Night]) -> Report:
    orders = total = 0
    for sale in read_sales(run.tenant, run.attempt):
        run.checkpoint()  # a worker that is told to stop gives the job back here
        orders, total = orders + 1, total + sale
    return Report(orders=orders, total=total, attempts=run.attempt)


def main() -> None:
    # One attempt fails, and is meant to: its line in the log would not belong to the report.
    logging.getLogger("ulak.jobs").setLevel(logging.ERROR)
    night = Night(date(2026, 3, 14))
    with tempfile.TemporaryDirectory() as folder:
        engine = ulak.connect(f"sqlite:///{folder}/reports.db", flows=[nightly])
        with engine, engine.working():
            jobs = {tenant: engine.submit(nightly, night, tenant=tenant) for tenant in TENANTS}
            for tenant, job in jobs.items():
                ended = engine.wait(job.id, timeout=timedelta(seconds=30))
                print(f"{tenant}: {ended.state}, {engine.result(job.id)}")

            print("asked for again, after a restart perhaps:")
            for tenant, first in jobs.items():
                again = engine.submit(nightly, night, tenant=tenant)
                same = "the same job" if again.id == first.id else "another job"
                print(f"{tenant}: {same}, {'new' if again.created else 'nothing new'}")


if __name__ == "__main__":
    main()
