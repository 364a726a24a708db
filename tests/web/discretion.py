"""What an answer may not hold: a secret that nobody asked for, or the one that was sent."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ulak.testing.secret_scan import Scanner

HANDED_OUT = (
    ("POST", re.compile(r".*/keys(/[^/]+/rotate)?"), 201),
    ("POST", re.compile(r".*/auth/login"), 200),
    ("GET", re.compile(r".*/auth/link"), 200),
)
"""The answers that hold a secret, this once."""
CREDENTIALS = {"authorization", "x-admin-key", "x-hos-api-key", "cookie"}
SHORTEST = 8


def must_be_discreet(
    method: str,
    url: str,
    *,
    sent: tuple[Mapping[str, str], Any],
    status: int,
    answer: tuple[Iterable[tuple[str, str]], bytes],
) -> None:
    """Refuse an answer that tells a secret.

    Args:
        method: Of the request.
        url: Of the request.
        sent: Its headers, and its body as JSON.
        status: Of the answer.
        answer: Its headers and its body.
    """
    headers, body = answer
    said = "\n".join(f"{name}: {value}" for name, value in headers).encode() + b"\n\n" + body
    path = urlsplit(url).path
    told = dict(enumerate(_secrets(url, *sent), 1)) if status >= 400 else {}
    leaks = Scanner({f"secret {n} of the request": s for n, s in told.items()}).scan_bytes(
        said, f"{method} {path} {status}"
    )
    if not any((method, status) == (m, s) and p.fullmatch(path) for m, p, s in HANDED_OUT):
        assert not leaks, sorted(map(str, leaks))


def _secrets(url: str, headers: Mapping[str, str], body: Any) -> Iterator[str]:
    """Return the secrets that were sent, but for those too short to be distinguished from words."""
    found = [value for name, value in headers.items() if name.lower() in CREDENTIALS]
    credentials = {word for value in found for word in re.split(r"[ =;]+", value)}
    codes = parse_qs(urlsplit(url).query).get("code", [])
    password = body.get("password") if isinstance(body, dict) else None
    passwords = [password if isinstance(password, str) else json.dumps(password)]
    yield from (s for s in {*credentials, *codes, *passwords} if len(s) >= SHORTEST)
