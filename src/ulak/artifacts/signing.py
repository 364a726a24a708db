"""Links to one artifact of one job that are good for a short while, without a credential.

What a link carries is a code: when it ends, and a signature of that, the job and the artifact
(HMAC-SHA-256). Nothing is stored; a code cannot be taken back, so it does not live long.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from datetime import timedelta
from typing import Final

from ulak.artifacts.storage import parts_of
from ulak.clock import SECOND, Clock, Duration, Instant, SystemClock, micros, read_micros
from ulak.errors import BadInput, Unauthenticated

PURPOSE: Final = "artifact links"
"""What the key of links is derived for: `identity.derive(PURPOSE)`."""

LINK_LIFE: Final = timedelta(minutes=5)
LONGEST_LIFE: Final = timedelta(hours=1)
"""Longer than any download is begun late; what is to live longer needs somebody who may ask."""
SHORTEST_KEY: Final = 32

# Ten digits of seconds reach to the year 2286; 43 letters of base64 are 32 bytes.
_CODE = re.compile(r"([0-9]{1,10})\.([A-Za-z0-9_-]{43})")


class DownloadLinks:
    """Makes and checks the codes of links.

    Args:
        key: Signs codes, and nothing else: derived from the platform's secret for `PURPOSE`,
            so every process with the same secret takes the codes of the others.
        clock: Tells when a code is over.

    Raises:
        BadInput: the key is too short.
    """

    def __init__(self, key: bytes, clock: Clock | None = None) -> None:
        if len(key) < SHORTEST_KEY:
            raise BadInput(f"the key of links has {len(key)} bytes; {SHORTEST_KEY} are needed")
        self._key = key
        self._clock = clock or SystemClock()

    def make_code(self, artifact_key: str, job_id: str, life: Duration = LINK_LIFE) -> str:
        """Return a code that reads this artifact of this job until its life is over, in whole
        seconds. The code is a secret until then. Raises `BadInput`: the artifact has no such
        key, or the code would live for no duration, less than a second or more than an hour."""
        parts_of(artifact_key)
        life_us = read_micros(life, "life=")
        if not SECOND <= life_us <= micros(LONGEST_LIFE):
            raise BadInput(f"a link lives a second to an hour, not {life}")
        ends_at = (self._clock.now() + life_us) // SECOND
        return f"{ends_at}.{self._sign(artifact_key, job_id, ends_at)}"

    def must_allow(self, code: str, artifact_key: str, job_id: str) -> None:
        """Check that a code reads this artifact of this job, now; in a time that tells nothing
        of it. Raises `Unauthenticated`: `malformed`, `expired`, or `unknown`: made for something
        else or by somebody else."""
        found = _CODE.fullmatch(code)
        if found is None:
            raise Unauthenticated("this is no code of a link", reason="malformed")
        ends_at, signature = int(found[1]), found[2]
        expected = self._sign(artifact_key, job_id, ends_at)
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise Unauthenticated(
                "this link was made for something else, or with another secret", reason="unknown"
            )
        if ends_at * SECOND <= self._clock.now():
            raise Unauthenticated("the link has expired; ask for another", reason="expired")

    def _sign(self, artifact_key: str, job_id: str, ends_at: Instant) -> str:
        # As a list of JSON: where one field ends and the next begins is part of what is signed.
        said = json.dumps([PURPOSE, 1, artifact_key, job_id, ends_at]).encode()
        digest = hmac.digest(self._key, said, "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
