"""Tokens and client addresses."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from openai_compat.auth import MALFORMED, MISSING, UNKNOWN, Authenticator, ClientAddress, parse_tokens
from openai_compat.errors import AuthenticationRequired


def header(value: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of a request with this `Authorization`."""
    return [(b"host", b"x"), (b"authorization", value)]


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("value", [b"Bearer t1", b"bearer t2", b"BEARER   t1", b" Bearer\tt2 "])
def test_a_known_token_passes_whatever_the_scheme_looks_like(value: bytes) -> None:
    assert Authenticator([b"t1", b"t2"]).principal(header(value)).name.startswith("key:")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", MALFORMED),
        (b"Bearer", MALFORMED),
        (b"Bearer ", MALFORMED),
        (b"t1", MALFORMED),
        (b"Basic dDE6", MALFORMED),
        (b"Token t1", MALFORMED),
        (b"Bearer t1 t2", MALFORMED),
        (b"Bearer t", UNKNOWN),
        (b"Bearer t11", UNKNOWN),
        (b"Bearer T1", UNKNOWN),
        (b"Bearer \xff\xfe", UNKNOWN),
        ("Bearer \N{SNOWMAN}".encode(), UNKNOWN),
        (b"\xc3\xa4 t1", MALFORMED),
    ],
)
def test_everything_else_is_refused_with_its_reason(value: bytes, message: str) -> None:
    with pytest.raises(AuthenticationRequired, match=message[:20]) as caught:
        Authenticator([b"t1"]).principal(header(value))

    assert caught.value.message == message


def test_no_header_is_refused_with_the_contracts_words() -> None:
    with pytest.raises(AuthenticationRequired, match=MISSING):
        Authenticator([b"t1"]).principal([(b"cookie", b"token=t1"), (b"x-api-key", b"t1")])


def test_two_headers_are_refused() -> None:
    with pytest.raises(AuthenticationRequired, match="Invalid"):
        Authenticator([b"t1"]).principal(header(b"Bearer t1") + header(b"Bearer t1"))


def test_a_token_of_any_bytes_can_be_used() -> None:
    assert Authenticator(["\N{SNOWMAN}".encode()]).principal(header("Bearer \N{SNOWMAN}".encode()))


def test_the_principal_is_stable_differs_by_token_and_hides_it() -> None:
    first = Authenticator([b"secret-a", b"secret-b"])
    again = Authenticator([b"secret-b", b"secret-a"])
    name = first.principal(header(b"Bearer secret-a")).name

    assert name == again.principal(header(b"Bearer secret-a")).name
    assert name != first.principal(header(b"Bearer secret-b")).name
    assert "secret" not in name


def test_without_tokens_nobody_is_asked() -> None:
    assert not Authenticator().enabled
    assert Authenticator([b"a"]).enabled


def test_empty_tokens_do_not_count() -> None:
    assert not Authenticator([b""]).enabled


def test_a_changed_file_is_read_again_after_a_second(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "tokens"
    file.write_bytes(b"old\n")
    auth = Authenticator(file=file, clock=clock)
    file.write_bytes(b"newer\n")

    clock.now += 0.5
    assert auth.principal(header(b"Bearer old"))
    clock.now += 0.6
    assert auth.principal(header(b"Bearer newer"))
    with pytest.raises(AuthenticationRequired):
        auth.principal(header(b"Bearer old"))


def test_a_file_adds_to_the_given_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(b"a,b\n# c\n")
    auth = Authenticator([b"d"], file=file)

    assert all(auth.principal(header(b"Bearer " + token)) for token in (b"a", b"b", b"d"))
    with pytest.raises(AuthenticationRequired):
        auth.principal(header(b"Bearer c"))


@pytest.mark.parametrize("broken", ["empty", "gone", "folder"])
def test_a_broken_file_leaves_the_old_tokens_and_logs(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = Clock(), tmp_path / "tokens"
    file.write_bytes(b"old\n")
    auth = Authenticator(file=file, clock=clock)
    file.unlink()
    if broken == "empty":
        file.write_bytes(b"\n# none\n")
    elif broken == "folder":
        file.mkdir()

    clock.now += 2
    with caplog.at_level(logging.WARNING):
        assert auth.principal(header(b"Bearer old"))
    assert "old API tokens stay" in caplog.text
    assert str(tmp_path) not in caplog.text


def test_a_file_replaced_by_rename_is_noticed(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "tokens"
    file.write_bytes(b"one\n")
    stat = file.stat()
    auth = Authenticator(file=file, clock=clock)
    other = tmp_path / "other"
    other.write_bytes(b"two\n")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(file)

    clock.now += 2
    assert auth.principal(header(b"Bearer two"))


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        Authenticator(file=tmp_path / "none")


def test_a_file_without_tokens_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(b"# nothing\n")
    with pytest.raises(ValueError, match="no token"):
        Authenticator(file=tmp_path / "tokens")


def test_tokens_of_a_file_are_separated_by_lines_and_commas() -> None:
    assert parse_tokens(b"\xef\xbb\xbfa, b\r\n\n  # c\nd#e,,\n") == (b"a", b"b", b"d#e")


def forwarded(*values: str) -> list[tuple[bytes, bytes]]:
    """Headers with these `X-Forwarded-For` lines."""
    return [(b"x-forwarded-for", value.encode()) for value in values]


@pytest.mark.parametrize(
    ("peer", "lines", "client"),
    [
        ("9.9.9.9", ["1.1.1.1"], "9.9.9.9"),  # nobody asked this peer
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", ["6.6.6.6, 1.1.1.1"], "1.1.1.1"),  # what the client wrote itself is not believed
        ("10.0.0.1", ["6.6.6.6", "1.1.1.1, 10.0.0.7"], "1.1.1.1"),
        ("10.0.0.1", ["10.0.0.8, 10.0.0.7"], "10.0.0.8"),
        ("10.0.0.1", ["6.6.6.6, nonsense, 10.0.0.7"], "10.0.0.7"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1:4711"], "1.1.1.1"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["::ffff:1.1.1.1"], "1.1.1.1"),
        ("fe80::1%eth0", [], "fe80::1"),
        ("::1", ["2001:db8::2"], "2001:db8::2"),
    ],
)
def test_the_client_is_the_last_address_that_no_trusted_proxy_has(
    peer: str, lines: list[str], client: str
) -> None:
    addresses = ClientAddress(["10.0.0.0/8", "::1"])

    assert addresses.principal((peer, 1), forwarded(*lines)).name == f"ip:{client}"


def test_without_trusted_proxies_the_header_means_nothing() -> None:
    assert ClientAddress().principal(("10.0.0.1", 1), forwarded("1.1.1.1")).name == "ip:10.0.0.1"


@pytest.mark.parametrize("peer", [None, ("", 0), ("/run/sock", None)])
def test_a_peer_without_an_address_is_one_principal(peer: tuple[object, ...] | None) -> None:
    assert ClientAddress(["10.0.0.0/8"]).principal(peer, forwarded("1.1.1.1")).name == "ip:unknown"


def test_only_the_last_hops_are_walked() -> None:
    lines = ["1.1.1.1, " + ", ".join(["10.0.0.2"] * 100)]

    assert ClientAddress(["10.0.0.0/8"]).principal(("10.0.0.1", 1), forwarded(*lines)).name == "ip:10.0.0.2"


def test_a_proxy_that_is_no_network_is_refused() -> None:
    with pytest.raises(ValueError, match="does not appear"):
        ClientAddress(["proxy.example"])
