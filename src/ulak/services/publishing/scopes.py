"""What service keys may be allowed to do."""

from __future__ import annotations

from typing import Final

from ulak.auth import OPERATOR, SERVICE, AccessScope


def _scope(word: str, allows: str) -> AccessScope:
    return AccessScope(f"publishing:{word}", allows, roles={SERVICE, OPERATOR}, of_a_tenant=False)


READ: Final = _scope("read", "read posts whatever their status")
APPROVE: Final = _scope("approve", "approve posts")
REJECT: Final = _scope("reject", "reject posts")
PREVIEW: Final = _scope("preview", "store previews of posts")
PUBLISH: Final = _scope("publish", "publish posts that have their preview")
ERROR: Final = _scope("error", "mark the publication of a post as failed")
DLQ: Final = _scope("dlq", "read, redrive and discard dead letters")
SCOPES: Final = (READ, APPROVE, REJECT, PREVIEW, PUBLISH, ERROR, DLQ)
