"""Extra headers by host: tokens that are sent where they belong, and never anywhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ulak.errors import BadInput
from ulak.services.pdf.security.urls import BadUrl, Url, parse

FIXED: Final = frozenset(
    {
        "accept-encoding", "connection", "content-length", "cookie", "host", "proxy-authorization",
        "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""What is the connection's own, or would tell of a session that pages do not have."""

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,8190}[\x21-\x7e])?", re.ASCII)


class ExtraHeaders:
    """What is sent along to each host.

    A host is written as in a URL: `files.example.org` is its usual port, any other is said. Nothing
    is sent in the clear, but to hosts that are listed as internal.

    Args:
        said: By host, the headers by their names.

    Raises:
        BadInput: a host or a header cannot be used; no value is told.
    """

    __slots__ = ("_by_host",)

    def __init__(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        self._by_host: dict[str, dict[str, str]] = {}
        for host, headers in said.items():
            place = self._by_host.setdefault(_authority(host), {})
            for name, value in headers.items():
                _must_be_header(host, name, value)
                place[name.lower()] = value

    def find(self, target: Url, *, is_internal: bool) -> Mapping[str, str]:
        """Return what is sent along with one request, {} for nothing."""
        if target.scheme != "https" and not is_internal:
            return {}
        return self._by_host.get(target.authority, {})

    def __repr__(self) -> str:
        return f"<ExtraHeaders for {', '.join(sorted(self._by_host)) or 'no host'}>"


def _authority(host: str) -> str:
    try:
        read = parse(f"https://{host}/")
    except BadUrl:
        read = None
    if read is None or read.target != "/" or "@" in host:
        raise BadInput(f"{host[:100]!r} is no host; write it as in a URL, with its port if unusual")
    return read.authority


def _must_be_header(host: str, name: str, value: Any) -> None:
    if not _NAME.fullmatch(name) or name.lower() in FIXED:
        raise BadInput(f"{host}: {name[:100]!r} cannot be sent along; name another header")
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise BadInput(f"{host}: the value of {name} is no plain text in one line")
