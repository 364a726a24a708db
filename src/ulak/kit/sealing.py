"""Secrets that a service must be able to read again, sealed in its tables.

Needs cryptography, which `ulak[encryption]` brings.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode

from cryptography.fernet import Fernet, InvalidToken

__all__ = ["Seal"]


class Seal:
    """Seals texts by a key that follows from a secret and the purpose (Fernet): who has only the
    table learns nothing, and a seal of one purpose is not opened for another."""

    def __init__(self, secret: str, purpose: str) -> None:
        key = hmac.digest(secret.encode(), purpose.encode(), "sha256")
        self._cipher = Fernet(urlsafe_b64encode(key))

    def seal(self, text: str) -> str:
        """Return a text sealed; each time it is another one."""
        return self._cipher.encrypt(text.encode()).decode()

    def open(self, sealed: str) -> str | None:
        """Return a text that was sealed; None when it was changed, or sealed by another key."""
        try:
            return self._cipher.decrypt(sealed).decode()
        except InvalidToken:
            return None
