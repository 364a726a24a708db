"""What callers of the service may be allowed to do."""

from typing import Final

from ulak.auth import OPERATOR, SERVICE, VIEWER, AccessScope

PDF_READ: Final = AccessScope(
    "pdf:read", "read PDF jobs of one's own and download what they made",
    roles={VIEWER, SERVICE, OPERATOR},
)  # fmt: skip
PDF_RENDER: Final = AccessScope("pdf:render", "have PDFs rendered", roles={SERVICE, OPERATOR})
