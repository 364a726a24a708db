"""What callers of the service may be allowed to do, and the header in which their keys may come."""

from typing import Final

from ulak.auth import OPERATOR, SERVICE, VIEWER, AccessScope

CONTRACT_READ: Final = AccessScope(
    "contract:read", "read contract versions, subjects and proofs",
    roles={VIEWER, SERVICE, OPERATOR},
)  # fmt: skip
CONTRACT_TRANSITION: Final = AccessScope(
    "contract:transition", "move contract subjects and record proofs", roles={SERVICE, OPERATOR}
)
KEY_HEADERS: Final = ("X-HOS-API-KEY",)
