"""What a URL says, in one spelling, whether an allow-list lets it through, and which addresses are
the public internet's.

Browsers, servers and resolvers read the same URL in different ways; an allow-list is worth only as
much as the agreement between them. So a URL is read here as browsers do (WHATWG), written in one
spelling, and what could be read in two ways is refused. The spelling is what patterns see *and*
what is fetched.

Patterns take linear time, since a stranger chooses the URL. Python's own matcher backtracks, and
holds the interpreter while it does: one `(a+)+` in an allow-list and one long URL would stop the
worker and all its jobs. RE2 cannot: what would need backtracking (look-around, references back,
atomic groups) it refuses when the pattern is read, that is, at start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_to_bytes

import idna

from ulak.errors import BadInput
from ulak.services.pdf.document import UrlBlocked

LONGEST: Final = 2_048
"""Characters of a URL. Longer ones are refused: old servers cut there, and matching costs by it."""
MOST_MEMORY: Final = 1024 * 1024
"""Of one pattern. A guess: far more than an ordinary one takes; a counted repeat like
`(x{999}){9}` ends here."""
PORTS: Final = {"http": 80, "https": 443}
HIGHEST_PORT: Final = 65535

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ENCODED: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_IN_PATH: Final = "!$%&'()*+,;=:@/"
_IN_QUERY: Final = "!$%&'()*+,;=:@/?"
_LONGEST_HOST: Final = 253

_REFUSED_4: Final = (
    "0.0.0.0/8",  # this network; Linux takes 0.0.0.0 for loopback
    "10.0.0.0/8",  # RFC 1918
    "100.64.0.0/10",  # carriers' NAT, and one cloud's metadata
    "127.0.0.0/8",  # loopback
    "168.63.129.16/32",  # the host agent of a cloud
    "169.254.0.0/16",  # link-local, with 169.254.169.254
    "172.16.0.0/12",  # RFC 1918
    "192.0.0.0/24",  # protocol assignments
    "192.0.2.0/24",  # documentation
    "192.88.99.0/24",  # relays of 6to4
    "192.168.0.0/16",  # RFC 1918
    "198.18.0.0/15",  # benchmarks
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, with 255.255.255.255
)
_REFUSED_6: Final = (
    "::/96",  # unspecified, loopback, and IPv4-compatible
    "64:ff9b::/96",  # IPv4 behind a translator
    "64:ff9b:1::/48",  # the same, local
    "100::/64",  # discarded
    "2001::/32",  # Teredo
    "2001:2::/48",  # benchmarks
    "2001:10::/28",  # ORCHID, both versions
    "2001:20::/28",
    "2001:db8::/32",  # documentation
    "2002::/16",  # 6to4: carries an IPv4 address
    "3fff::/20",  # documentation
    "fc00::/7",  # unique local
    "fe80::/10",  # link-local
    "fec0::/10",  # site-local
    "ff00::/8",  # multicast
)

REFUSED: Final[tuple[IPv4Network | IPv6Network, ...]] = (
    *map(IPv4Network, _REFUSED_4),
    *map(IPv6Network, _REFUSED_6),
)
"""Every range that is no part of the public internet."""
UNICAST: Final = IPv6Network("2000::/3")
"""Outside of it nothing is routed; what may be assigned there one day is not waited for."""


class BadUrl(ValueError):
    """A URL cannot be used; the message says why, and holds nothing of the URL."""


class BadScheme(BadUrl):
    """The URL is none of http or https."""


@dataclass(frozen=True, slots=True)
class Url:
    """A URL of http or https in one spelling, without a fragment."""

    scheme: str
    host: str
    """Lower case, ASCII; of an address its usual form, without brackets."""
    port: int
    target: str
    """Path and query."""

    @property
    def authority(self) -> str:
        """Host and port, as the `Host` header says them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


class UrlPatterns:
    """An allow-list: patterns over whole URLs in their one spelling.

    Raises:
        BadInput: a pattern cannot be read, or may take more than linear time.
    """

    __slots__ = ("_matchers",)

    def __init__(self, patterns: Iterable[str]) -> None:
        self._matchers = tuple(map(compile_pattern, patterns))

    def check(self, url: str) -> Url:
        """Return a URL if one of the patterns matches all of it.

        Raises:
            UrlBlocked: `scheme` or `allowlist`; what cannot be read is in no list.
        """
        try:
            read = parse(url)
        except BadUrl as error:
            raise UrlBlocked("scheme" if isinstance(error, BadScheme) else "allowlist") from None
        text = str(read)
        if not any(matcher.fullmatch(text) for matcher in self._matchers):
            raise UrlBlocked("allowlist")
        return read


def validate_url(url: str, patterns: Iterable[str]) -> bool:
    """Tell whether an allow-list lets a URL through; an empty one lets none.

    Only http and https pass, whatever the patterns say. Takes time linear in the URL's length,
    and a URL that is longer than `LONGEST` is refused unread. Raises as `UrlPatterns`.
    """
    try:
        UrlPatterns(patterns).check(url)
    except UrlBlocked:
        return False
    return True


def compile_pattern(text: str) -> Any:
    """Return the matcher of a regular expression (`fullmatch`); raises as `UrlPatterns`."""
    # Here and not above: whoever has no patterns needs no matcher.
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors, options.max_mem = False, MOST_MEMORY
    try:
        return re2.compile(text, options)
    except re2.error as error:
        said = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise BadInput(f"URL pattern {text!r} cannot be read: {said}") from None


def parse(url: str) -> Url:
    """Read a URL as browsers do, and refuse what others may read differently.

    Scheme and host become lower case, the host IDNA, numeric hosts addresses; a default port, a
    fragment and dot segments go away; percent signs stay only where they are needed. Reading what
    was written so changes nothing.

    Raises:
        BadScheme: it is no URL of http or https.
        BadUrl: it is too long, holds credentials, control characters, white space or backslashes
            before its query, an IPv6 zone, or a host or port that is none.
    """
    if len(url) > LONGEST:
        raise BadUrl(f"the URL is longer than {LONGEST} characters")
    # Browsers drop tabs and line ends and cut white space off; others read on.
    if any(c <= " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in url):
        raise BadUrl("the URL holds white space, a control character or half a character")
    found = _SCHEME.match(url)
    scheme = found[1].lower() if found else ""
    if not found or scheme not in PORTS:
        raise BadScheme("only http and https can be fetched")
    rest, _, _ = url[found.end() :].partition("#")
    before, question, query = rest.partition("?")
    if "\\" in before:
        raise BadUrl("the URL holds a backslash, which is a slash to some")
    if not before.startswith("//"):
        raise BadUrl("the URL names no host")
    authority, slash, path = before[2:].partition("/")
    host, port = _authority(authority, PORTS[scheme])
    target = _path(slash + path) + question + _spelling(query, _IN_QUERY)
    result = Url(scheme, host, port, target)
    if len(str(result)) > LONGEST:
        raise BadUrl(f"the URL is longer than {LONGEST} characters")
    return result


def is_public(address: str | IPv4Address | IPv6Address) -> bool:
    """Tell whether an address lies in the public internet; what is no address does not.

    An IPv4 address in the form of IPv6 (`::ffff:127.0.0.1`) is judged as the IPv4 address.
    """
    try:
        judged = ip_address(address)
    except ValueError:
        return False
    if isinstance(judged, IPv6Address):
        if judged.ipv4_mapped is not None:
            judged = judged.ipv4_mapped
        elif judged.scope_id is not None or judged not in UNICAST:
            return False
    return not any(judged in network for network in REFUSED if network.version == judged.version)


def _authority(authority: str, default: int) -> tuple[str, int]:
    if "@" in authority or "%40" in authority:
        raise BadUrl("the URL holds a user name")
    if authority.startswith("["):
        inside, bracket, after = authority[1:].partition("]")
        host = _address_6(inside)
        if not bracket or (after and not after.startswith(":")):
            raise BadUrl("the URL's address has no end")
        return host, _port(after[1:], default)
    host, colon, port = authority.partition(":")
    return _host(host), _port(port if colon else "", default)


def _port(text: str, default: int) -> int:
    # isdigit alone takes the digits of every script.
    if text and not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise BadUrl("the URL's port is no number")
    port = int(text) if text else default
    if not 0 < port <= HIGHEST_PORT:
        raise BadUrl(f"the URL's port is not between 1 and {HIGHEST_PORT}")
    return port


def _address_6(text: str) -> str:
    if "%" in text:
        raise BadUrl("the URL's address has a zone")
    try:
        return IPv6Address(text).compressed
    except AddressValueError:
        raise BadUrl("the URL's address is none") from None


def _host(text: str) -> str:
    """Return a host's name in ASCII, or the address that it writes as a number."""
    try:
        # Browsers decode it once; a percent sign that is left then is refused as any other.
        decoded = unquote_to_bytes(text).decode()
        host = decoded.lower() if decoded.isascii() else idna.uts46_remap(decoded, std3_rules=False)
        host = host.removesuffix(".")
        labels = host.split(".")
        if _NUMERIC.fullmatch(labels[-1]):
            return _address_4(labels)
        if not host.isascii() or any(label.startswith("xn--") for label in labels):
            host = idna.encode(host).decode()
    except UnicodeError:  # idna's own error is one
        raise BadUrl("the URL's host is no name") from None
    if len(host) > _LONGEST_HOST or not all(map(_LABEL.fullmatch, host.split("."))):
        raise BadUrl("the URL's host is no name")
    return host


def _address_4(parts: list[str]) -> str:
    """Read `2130706433`, `0177.0.0.1`, `0x7f.1` and the like as resolvers do."""
    if len(parts) > 4 or not all(map(_NUMERIC.fullmatch, parts)):
        raise BadUrl("the URL's host ends like an address and is none")
    try:
        numbers = [_number(part) for part in parts]
    except ValueError:
        raise BadUrl("the URL's host is an address with a number that is none") from None
    *firsts, last = numbers
    if any(number > 255 for number in firsts) or last >= 256 ** (5 - len(parts)):
        raise BadUrl("the URL's host is an address with a number that is too large")
    high = sum(number << (8 * (3 - place)) for place, number in enumerate(firsts))
    return str(IPv4Address(high + last))


def _number(text: str) -> int:
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8 if text.startswith("0") and len(text) > 1 else 10)


def _path(path: str) -> str:
    """Resolve dot segments, `%2e` included, and spell the rest."""
    kept: list[str] = []
    segments = path.split("/")[1:] or [""]
    for place, segment in enumerate(segments):
        spelt = _spelling(segment, _IN_PATH)
        if spelt not in (".", ".."):
            kept.append(spelt)
            continue
        if spelt == "..":
            del kept[-1:]
        if place == len(segments) - 1:
            kept.append("")
    for segment in kept:
        # `..%2f` is one segment to a browser and a way up to a server that decodes first.
        hidden = re.split(r"[/\\]", unquote(segment))
        if len(hidden) > 1 and {".", ".."} & set(hidden):
            raise BadUrl("the URL's path hides dot segments behind an encoded slash")
    return "/" + "/".join(kept)


def _spelling(text: str, safe: str) -> str:
    """Encode what must be, decode what need not be, and write the rest in upper case."""

    def respell(found: re.Match[str]) -> str:
        character = chr(int(found[1], 16))
        return character if character in _UNRESERVED else found[0].upper()

    # A bare percent sign could become an encoding together with what is decoded after it.
    return _ENCODED.sub(respell, _BARE_PERCENT.sub("%25", quote(text, safe=safe)))
