"""What callers of the cutting service may be allowed to do."""

from __future__ import annotations

from typing import Final

from ulak.auth import OPERATOR, SERVICE, VIEWER, AccessScope

READ: Final = AccessScope(
    "cutting:read", "read orders of cutting, their plans and their customers",
    roles={VIEWER, OPERATOR, SERVICE}, of_a_tenant=False,
)  # fmt: skip
ACT: Final = AccessScope(
    "cutting:act", "send orders to be cut, and approve, retry and cancel them",
    roles={OPERATOR, SERVICE}, of_a_tenant=False,
)  # fmt: skip
CONFIGURE: Final = AccessScope(
    "cutting:configure", "change rules and paths of cutting, and reset its breaker",
    roles=(), of_a_tenant=False,
)  # fmt: skip
SCOPES: Final = (READ, ACT, CONFIGURE)
