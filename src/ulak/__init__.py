"""Durable jobs for Python, each one a state machine that you declare.

Everything a program needs is named here; what is not named here may change without notice.
"""

from ulak.core.flow import Flow
from ulak.core.lifecycle import SAME, Lifecycle
from ulak.core.outcome import Goto, Hold, Refused, RetryLater
from ulak.core.policy import SUBMITTER, Backoff, Dedup, Limit, Rate, Until
from ulak.core.run import Decision, Run, Stopped
from ulak.engine.engine import Engine
from ulak.engine.function import OnEnd
from ulak.engine.ports import WorkerSettings
from ulak.engine.view import Job, Message
from ulak.errors import (
    BadInput,
    FlowError,
    JobFailed,
    JobNotFound,
    KeyTaken,
    Overloaded,
    StaleJob,
    StoreError,
    TransitionNotAllowed,
    UlakError,
    UnknownOutcome,
)
from ulak.store.protocol import JobFilter
from ulak.wiring import connect

__version__ = "0.1.0"

__all__ = [
    "SAME",
    "SUBMITTER",
    "Backoff",
    "BadInput",
    "Decision",
    "Dedup",
    "Engine",
    "Flow",
    "FlowError",
    "Goto",
    "Hold",
    "Job",
    "JobFailed",
    "JobFilter",
    "JobNotFound",
    "KeyTaken",
    "Lifecycle",
    "Limit",
    "Message",
    "OnEnd",
    "Overloaded",
    "Rate",
    "Refused",
    "RetryLater",
    "Run",
    "StaleJob",
    "Stopped",
    "StoreError",
    "TransitionNotAllowed",
    "UlakError",
    "UnknownOutcome",
    "Until",
    "WorkerSettings",
    "connect",
]
