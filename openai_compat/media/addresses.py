"""Which addresses of the network are everybody's, so that it tells nothing and moves nothing to ask there.

The tables are our own: `ipaddress.is_global` differs between releases of Python, and takes addresses for public that
carry a private IPv4 address inside (NAT64, 6to4).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address

_NOT_PUBLIC_V4: Final = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this host, this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by a carrier's customers
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, where clouds answer with credentials
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_PUBLIC_V6: Final = ip_network("2000::/3")
"""All that was ever given out. Outside lie loopback, IPv4 in IPv6 (`::ffff:…`, `::…`), NAT64 (`64:ff9b::…`), unique
local, link-local, site-local and multicast."""
_NOT_PUBLIC_V6: Final = tuple(
    ip_network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them: an IPv4 address is inside
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address is inside
        "3fff::/20",  # documentation
    )
)
_NEVER: Final = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/128",
        "fe80::/10",
        "ff00::/8",
    )
)


def is_public(address: Address) -> bool:
    """Whether anybody on the internet would reach the same host at this address."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    if address.scope_id is not None or address not in _PUBLIC_V6:
        return False
    return not any(address in network for network in _NOT_PUBLIC_V6)


def may_be_named(address: Address) -> bool:
    """Whether an operator can allow an address that is not public by writing it down. Not what leads to the metadata
    of a cloud, to many hosts, or to none."""
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address.ipv4_mapped is not None):
        return False
    return not any(address in network for network in _NEVER)


def literal(host: str) -> Address | None:
    """The address that `host` spells out, in no other form than the usual one; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
