"""Stages with `transaction=True`: the rows that they write and their move are one commit.

A change that is committed with a stage's rows always gives the lease back, so that its token has
moved: if it was written although no answer came, whatever is offered in its place is refused.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from ulak.core import event as kinds
from ulak.core.change import COMMITTED, Change, LeaseLost, Receipt
from ulak.core.flow import Flow
from ulak.core.outcome import Deferred, Held, Outcome
from ulak.engine.stage_outcomes import Postponed, read_error
from ulak.errors import BadInput, NotSupported, StoreError, WriteRefused
from ulak.store.protocol import Features
from ulak.store.transaction import StageStore, StageTransaction

if TYPE_CHECKING:
    from ulak.engine.active_run import ActiveRun

log = logging.getLogger("ulak.worker")

# After trouble with the store that is not the stage's fault it runs again, and spends no attempt.
SHORTLY = timedelta(seconds=1)
LOOK_EVERY_S = 0.1


def refuse_if_unable(features: Features, flow: Flow[Any]) -> None:
    """Refuse a flow whose stages want a transaction that the store cannot share.

    Raises:
        NotSupported: naming the stage, the reason and the cure.
    """
    if features.stage_transactions:
        return
    why = "it has no transaction that rows of yours could be in"
    if features.caller_transactions:
        why = "it has one writer, and the renewals of leases would wait behind your code"
    for stage in flow.declared.stages:
        if stage.transaction:
            raise NotSupported(
                f'{flow.name}: the stage for "{stage.state}" has transaction=True, which is not '
                f"to be had from the {features.name} store: {why}; leave it out and write your "
                "rows in a transaction of your own, under a unique key such as run.key('rows'), "
                "so that a second run finds them; or connect to PostgreSQL"
            )


def begin(run: ActiveRun) -> Any:
    """Return the connection of a run; the first call begins its transaction.

    Raises:
        BadInput: the stage is not declared so.
        Postponed: the store has no connection now.
    """
    if run.transaction is None:
        if not run.is_transactional():
            raise BadInput(
                f'run.connection is for stages with transaction=True, and "{run.row.state}" has '
                "not said so"
            )
        if run.change is not None:
            raise BadInput("run.connection: this stage has ended, and its transaction with it")
        try:
            run.transaction = cast(StageStore, run.worker.store).begin_stage()
        except StoreError as error:
            raise Postponed(f"no transaction could be begun: {error}") from error
    return run.transaction.connection


def roll_back(run: ActiveRun) -> None:
    """Take back what the stage wrote, if anything."""
    transaction, run.transaction = run.transaction, None
    if transaction is not None:
        transaction.roll_back()


def commit(run: ActiveRun, transaction: StageTransaction, change: Change) -> Receipt | Outcome:
    """Commit a change with the rows of its stage, on a thread of the worker.

    When nothing was written and the fault is not the lease's, return how the run has ended
    instead: its rows are gone, and it runs again.
    """
    telemetry = run.worker.kernel.telemetry
    if not _is_next(run):
        transaction.roll_back()
        return LeaseLost()
    try:
        began = time.monotonic()
        receipt = transaction.commit(change)
        telemetry.committed((change,), (receipt,), time.monotonic() - began)
        return receipt
    except WriteRefused as refusal:
        return Held(kinds.COMMIT_REJECTED, ascii(str(refusal))[:500])
    except StoreError as error:
        log.warning("a stage's transaction was lost", extra={"error": str(error)})
        written = _is_written(run, change)
        if written is None:
            return LeaseLost()
        if not written:
            return Deferred(SHORTLY, False, f"its rows were lost: {error}")
        telemetry.committed((change,), (COMMITTED,), None)
        return COMMITTED
    except Exception as error:  # noqa: BLE001 - the runner: rows refused at the commit are the stage's failure
        return read_error(run.flow, error)


def _is_next(run: ActiveRun) -> bool:
    """Wait until the line that says the run is over its time is written: this one follows it."""
    noted = run.noted
    while noted is not None and not noted.wait(LOOK_EVERY_S):
        if run.worker.committer.has_stopped:
            return False
    return not run.lost


def _is_written(run: ActiveRun, change: Change) -> bool | None:
    """Look the commit up until the store answers; None when nobody waits for it any more."""
    while not run.worker.committer.has_stopped:
        time.sleep(LOOK_EVERY_S)
        try:
            return run.worker.store.find_commits([change])[0]
        except StoreError as error:
            log.warning("the store does not answer", extra={"error": str(error)})
    return None
