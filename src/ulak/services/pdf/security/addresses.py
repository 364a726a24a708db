"""Which addresses are the public internet's, and which a page must never make a worker reach."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

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
