"""RQ as the muscle: its workers run ulak's jobs, and the store stays the truth.

    ULAK_RQ_QUEUES=reports ulak up shop.jobs:engine
    ULAK_APP=shop.jobs:engine rq worker reports     # or -w ulak.dispatch.rq.Worker

A message carries the id of a job and nothing else. It may be lost, doubled or late:
`docs/how-to/run-under-rq.md` says what happens then.
"""

from ulak.dispatch.rq.rings import Dispatch, connect
from ulak.dispatch.rq.worker import Worker, run

__all__ = ["Dispatch", "Worker", "connect", "run"]
