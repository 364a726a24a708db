"""One effect per key: a request that is repeated is answered as it was the first time.

    guard = Guard(engine.store)
    charge = Scope("orders.charge")

    answered = guard.execute(Asked(charge, key="order-4711", request_hash=digest), operation)

`operation` runs once per (tenant, scope, key), also when many processes are asked at once; every
later request is answered from the record. `docs/idempotency.md` tells the rest.
"""

from ulak.idempotency.execution import Execution, current
from ulak.idempotency.functions import idempotent
from ulak.idempotency.guard import Answered, Asked, Guard
from ulak.idempotency.key import HEADER, REPLAYED, fingerprint, read_key
from ulak.idempotency.scope import Answer, Scope

__all__ = [
    "HEADER",
    "REPLAYED",
    "Answer",
    "Answered",
    "Asked",
    "Execution",
    "Guard",
    "Scope",
    "current",
    "fingerprint",
    "idempotent",
    "read_key",
]
