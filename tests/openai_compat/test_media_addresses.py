"""Which addresses are everybody's, and which hosts an operator allows."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_compat.media.addresses import is_public, may_be_named
from openai_compat.media.allowed import AllowedHosts


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",  # noqa: S104
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.7",
        "203.0.113.7",
        "224.0.0.251",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::7f00:1",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:0:53aa:64c:0:0:80ff:fffe",
        "2001:db8::1",
        "2002:7f00:1::",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_an_address_that_is_not_everybodys_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.167.1.1"),
        *("223.255.255.255", "2001:4860:4860::8888", "2606:4700::1111", "2a00:1450::1"),
    ],
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@given(st.ip_addresses(v=4))
def test_no_ipv4_address_becomes_public_inside_an_ipv6_one(address: IPv4Address) -> None:
    number = int(address)
    inside = [
        IPv6Address(number),
        IPv6Address(0xFFFF << 32 | number),
        IPv6Address((0x64FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80)),
    ]

    assert not any(map(is_public, inside))


@given(st.ip_addresses())
def test_what_is_public_here_python_calls_global(address: IPv4Address | IPv6Address) -> None:
    assert address.is_global or not is_public(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "192.168.0.1", "::1", "fd00::1", "8.8.8.8"])
def test_an_operator_can_name_an_address_of_his_own(address: str) -> None:
    assert may_be_named(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "fe80::1",
        "ff02::1",
        "::ffff:10.0.0.1",
    ],
)
def test_nobody_can_name_what_is_no_host(address: str) -> None:
    assert not may_be_named(ip_address(address))
    with pytest.raises(ValueError, match="nothing is fetched"):
        AllowedHosts([f"[{address}]:80"])


@pytest.mark.parametrize(
    ("entry", "host", "port", "may"),
    [
        ("example.com", "example.com", 443, True),
        ("example.com", "EXAMPLE.com.", 80, True),
        ("example.com", "example.com", 8080, False),
        ("example.com", "www.example.com", 443, False),
        ("example.com", "badexample.com", 443, False),
        ("example.com", "example.com.evil.org", 443, False),
        ("example.com:8443", "example.com", 8443, True),
        ("example.com:8443", "example.com", 443, False),
        ("*.example.com", "www.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "badexample.com", 443, False),
        ("*.example.com:8443", "www.example.com", 8443, True),
        ("*", "anything.example", 443, True),
        ("*", "anything.example", 22, False),
        ("*", "8.8.8.8", 443, True),
        ("*", "127.0.0.1", 443, False),
        ("*", "::1", 443, False),
        ("8.8.8.8", "8.8.8.8", 443, True),
        ("127.0.0.1:9000", "127.0.0.1", 9000, True),
        ("127.0.0.1:9000", "127.0.0.1", 9001, False),
        ("127.0.0.1:9000", "127.0.0.2", 9000, False),
        ("127.0.0.1:9000", "localhost", 9000, False),
        ("[::1]:9000", "::1", 9000, True),
        ("[::1]:9000", "0:0:0:0:0:0:0:1", 9000, True),
        ("::1", "::1", 80, True),
        ("10.0.0.7", "10.0.0.7", 80, True),
    ],
)
def test_an_entry_allows_what_it_names(entry: str, host: str, port: int, may: bool) -> None:
    assert AllowedHosts([entry]).take(host, port) is may


def test_without_an_entry_nothing_is_allowed() -> None:
    assert not AllowedHosts([])
    assert not AllowedHosts([]).take("example.com", 443)


def test_an_address_that_is_not_public_is_allowed_by_its_own_entry_alone() -> None:
    allowed = AllowedHosts(["*", "*:9000", "127.0.0.1:9000"])

    assert allowed.name(IPv4Address("127.0.0.1"), 9000)
    assert not allowed.name(IPv4Address("127.0.0.1"), 80)
    assert not allowed.name(IPv4Address("10.0.0.1"), 9000)
