"""Pictures that are fetched: from where, over which connection, and how much of it. The servers are real ones on
loopback, the names are looked up by a script."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from ipaddress import ip_address

import pytest

from backends.errors import Overloaded
from openai_compat.media import fetch
from openai_compat.media.addresses import Address
from openai_compat.media.allowed import AllowedHosts
from openai_compat.media.fetch import MAX_REDIRECTS, Fetcher, FetchFailed, NotAllowed
from tests.backends.provider_upstreams.server import Answer, Call, Upstream, Wire, silence, upstream
from tests.openai_compat.pictures import png

PICTURE = png(20, 20)
SOON_S = 5.0


class Names:
    """A resolver whose answers change from one question to the next; the last one stays."""

    def __init__(self, **answers: Sequence[list[str]]) -> None:
        self.answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        given = self.answers.get(host)
        if not given:
            raise OSError("unknown")
        return given.pop(0) if len(given) > 1 else given[0]


async def gives_picture(_: Call, wire: Wire) -> None:
    await wire.whole(200, PICTURE, "image/png")


def redirect(location: str, status: int = 302) -> Answer:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.whole(status, b"", location=location)

    return answer


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    async with upstream(gives_picture) as one:
        yield one


class Fetching:
    """A fetcher that is closed in the end."""

    def __init__(self, *allow: str, names: Names | None = None, max_fetches: int = 4) -> None:
        self.fetcher = Fetcher(AllowedHosts(allow), max_fetches=max_fetches, look_up=names)

    async def __call__(self, url: str, *, max_bytes: int = 1 << 20, patience_s: float = SOON_S) -> bytes:
        deadline = asyncio.get_running_loop().time() + patience_s
        return await self.fetcher.fetch(self.fetcher.check(url), max_bytes=max_bytes, deadline=deadline)

    async def __aenter__(self) -> Fetching:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fetcher.aclose()


def here(server: Upstream) -> str:
    """The entry that allows the server."""
    return f"127.0.0.1:{server.port}"


@pytest.fixture
def loopback_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a name can lead to a server of the test."""

    def is_public(address: Address) -> bool:
        return address == ip_address("127.0.0.1")

    monkeypatch.setattr(fetch, "is_public", is_public)


async def test_the_bytes_come_as_they_are(server: Upstream) -> None:
    async with Fetching(here(server)) as get:
        assert await get(f"{server.url}/a.png?b=c%20d#e") == PICTURE

    (call,) = server.calls
    assert (call.method, call.path) == ("GET", "/a.png?b=c%20d")
    assert call.headers["accept-encoding"] == "identity"
    assert "cookie" not in call.headers
    assert "authorization" not in call.headers


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.png",
        "//example.com/a.png",
        "http:",
        "http://",
        "http:///a.png",
        "file:///etc/passwd",
        "ftp://example.com/a.png",
        "gopher://example.com/",
        "javascript:alert(1)",
        "gs://bucket/a.png",
        "http://example.com:99999/",
        "http://example.com:x/",
        "http://exa mple.com/",
        "http://example.com/a b",
        "http://example.com\\@127.0.0.1/",
        "http://example.com/\n",
        "http://b\u00fccher.example/",
        "http://[::1/",
        "https://example.com/" + "a" * fetch.MAX_URL_CHARS,
    ],
)
async def test_what_is_no_link_is_refused(url: str) -> None:
    async with Fetching("*") as get:
        with pytest.raises(FetchFailed, match=r"no http\(s\) URL"):
            await get(url)


@pytest.mark.parametrize(
    "url", ["http://user:word@example.com/", "http://user@example.com/", "http://:word@example.com/"]
)
async def test_credentials_in_a_link_are_refused(url: str) -> None:
    async with Fetching("*") as get:
        with pytest.raises(FetchFailed, match="credentials"):
            await get(url)


async def test_without_an_entry_the_setting_is_named() -> None:
    async with Fetching() as get:
        with pytest.raises(NotAllowed, match="LLM_MEDIA_ALLOW"):
            await get("https://example.com/a.png")


async def test_a_host_that_is_not_allowed_is_not_looked_up() -> None:
    names = Names(example_org=[["8.8.8.8"]])
    async with Fetching("example.com", names=names) as get:
        with pytest.raises(NotAllowed, match="LLM_MEDIA_ALLOW"):
            await get("https://example.org/a.png")

    assert names.asked == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["100.64.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["fe80::1%eth0"],
        ["0.0.0.1"],
        ["224.0.0.1"],
        ["8.8.8.8", "127.0.0.1"],
        ["nonsense"],
    ],
)
async def test_a_name_with_an_address_that_is_not_public_is_not_followed(
    server: Upstream, addresses: list[str]
) -> None:
    """Also where the operator allows the name, and the address with it."""
    names = Names(example_com=[addresses])
    async with Fetching(f"example.com:{server.port}", here(server), names=names) as get:
        with pytest.raises(FetchFailed, match="not public"):
            await get(f"http://example.com:{server.port}/a.png")

    assert server.connections == 0


@pytest.mark.usefixtures("loopback_is_public")
async def test_the_connection_goes_to_the_address_that_was_looked_at(server: Upstream) -> None:
    """A name that answers otherwise the second time is not asked a second time."""
    names = Names(example_com=[["127.0.0.1"], ["127.0.0.2"]])
    async with Fetching(f"example.com:{server.port}", names=names) as get:
        assert await get(f"http://example.com:{server.port}/a.png") == PICTURE

    assert names.asked == ["example.com"]
    assert server.calls[0].headers["host"] == f"example.com:{server.port}"


@pytest.mark.usefixtures("loopback_is_public")
async def test_a_name_is_looked_at_anew_for_every_fetch(server: Upstream) -> None:
    names = Names(example_com=[["127.0.0.1"], ["127.0.0.2"]])
    async with Fetching(f"example.com:{server.port}", names=names) as get:
        await get(f"http://example.com:{server.port}/a.png")
        with pytest.raises(FetchFailed, match="not public"):
            await get(f"http://example.com:{server.port}/a.png")

    assert server.connections == 1


async def test_a_socket_to_an_address_that_is_not_public_is_not_made(server: Upstream) -> None:
    """Whatever was decided about the name before."""
    async with Fetching("*") as get:
        with pytest.raises(fetch._Refused):
            get.fetcher._open_socket((2, 1, 6, "", ("127.0.0.1", server.port)))


@pytest.mark.parametrize(
    "host", ["localhost", "0x7f.1", "2130706433", "127.1", "127.0.0.1.", "%31%32%37.0.0.1"]
)
async def test_other_spellings_of_an_address_lead_nowhere(server: Upstream, host: str) -> None:
    async with Fetching(f"*:{server.port}", here(server)) as get:
        with pytest.raises(FetchFailed):
            await get(f"http://{host}:{server.port}/a.png")

    assert server.connections == 0


async def test_a_name_that_does_not_exist_is_a_picture_that_cannot_be_fetched() -> None:
    async with Fetching("example.com", names=Names()) as get:
        with pytest.raises(FetchFailed, match="cannot be reached"):
            await get("https://example.com/a.png")


async def test_a_dead_port_is_a_picture_that_cannot_be_fetched(server: Upstream) -> None:
    async with upstream(silence) as other:
        port = other.port
    async with Fetching(f"127.0.0.1:{port}") as get:
        with pytest.raises(FetchFailed, match="cannot be reached"):
            await get(f"http://127.0.0.1:{port}/a.png")


# Redirects.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed_where_its_target_is_allowed(server: Upstream, status: int) -> None:
    server.answers = [redirect("/b.png", status)]
    async with Fetching(here(server)) as get:
        assert await get(f"{server.url}/a.png") == PICTURE

    assert [call.path for call in server.calls] == ["/a.png", "/b.png"]
    assert server.connections == 2


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("http://169.254.169.254/latest/meta-data/", "LLM_MEDIA_ALLOW"),
        ("http://localhost/", "LLM_MEDIA_ALLOW"),
        ("http://127.0.0.1:1/", "LLM_MEDIA_ALLOW"),
        ("//10.0.0.1/", "LLM_MEDIA_ALLOW"),
        ("http://user:word@127.0.0.1/", "credentials"),
        ("file:///etc/passwd", "no http"),
        ("ftp://example.com/", "no http"),
        ("http://[/", "leads nowhere"),
        ("http://example.com:99999/", "leads nowhere"),
        ("/" + "a" * fetch.MAX_URL_CHARS, "leads nowhere|cannot be reached"),
    ],
)
async def test_a_redirect_is_looked_at_like_a_link(server: Upstream, target: str, words: str) -> None:
    server.answer = redirect(target)
    async with Fetching(here(server)) as get:
        with pytest.raises(FetchFailed, match=words):
            await get(f"{server.url}/a.png")

    assert server.connections == 1


@pytest.mark.usefixtures("loopback_is_public")
async def test_a_redirect_to_a_name_with_an_address_that_is_not_public_is_not_followed(
    server: Upstream,
) -> None:
    names = Names(example_com=[["127.0.0.1"]], inside_example_com=[["10.0.0.1"]])
    server.answer = redirect(f"http://inside.example.com:{server.port}/")
    allow = (f"example.com:{server.port}", f"*.example.com:{server.port}")
    async with Fetching(*allow, names=names) as get:
        with pytest.raises(FetchFailed, match="not public"):
            await get(f"http://example.com:{server.port}/a.png")

    assert names.asked == ["example.com", "inside.example.com"]


async def test_a_redirect_without_a_target_is_no_picture(server: Upstream) -> None:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.whole(302, b"")

    server.answer = answer
    async with Fetching(here(server)) as get:
        with pytest.raises(FetchFailed):
            await get(f"{server.url}/a.png")


async def test_a_loop_of_redirects_ends(server: Upstream) -> None:
    server.answer = redirect("/a.png")
    async with Fetching(here(server)) as get:
        with pytest.raises(FetchFailed, match=f"more than {MAX_REDIRECTS} redirects"):
            await get(f"{server.url}/a.png")

    assert len(server.calls) == MAX_REDIRECTS + 1


async def test_no_redirect_leads_from_https_to_http(server: Upstream) -> None:
    async with Fetching("*") as get:
        url = get.fetcher.check("https://example.com/a.png")
        with pytest.raises(FetchFailed, match="from https to something else"):
            get.fetcher._next(url, "http://example.com/a.png")

        assert str(get.fetcher._next(url, "/b.png")) == "https://example.com/b.png"


# Answers.


@pytest.mark.parametrize("status", [204, 206, 304, 401, 403, 404, 429, 500, 503])
async def test_an_answer_that_is_no_success_is_no_picture(server: Upstream, status: int) -> None:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.whole(status, b"")

    server.answer = answer
    async with Fetching(here(server)) as get:
        with pytest.raises(FetchFailed, match=str(status)):
            await get(f"{server.url}/secret-path")


async def test_a_length_that_is_too_large_is_refused_before_the_body(server: Upstream) -> None:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n")
        await asyncio.Event().wait()

    server.answer = answer
    async with Fetching(here(server)) as get:
        with pytest.raises(FetchFailed, match="larger than 1048576 bytes"):
            await get(f"{server.url}/a.png")


async def test_a_body_without_an_end_is_cut_off_at_the_limit(server: Upstream) -> None:
    """Its length is what came, not what was said."""

    async def answer(_: Call, wire: Wire) -> None:
        await wire.begin_stream("image/png")
        while True:
            await wire.piece(bytes(10_000))

    server.answer = answer
    async with Fetching(here(server)) as get:
        with pytest.raises(FetchFailed, match="larger than 100000 bytes"):
            await get(f"{server.url}/a.png", max_bytes=100_000)
    await server.calls[0].wait_until_ended()

    assert server.calls[0].client_left


async def test_a_picture_of_just_the_largest_size_is_taken(server: Upstream) -> None:
    async with Fetching(here(server)) as get:
        assert await get(f"{server.url}/a.png", max_bytes=len(PICTURE)) == PICTURE
        with pytest.raises(FetchFailed):
            await get(f"{server.url}/a.png", max_bytes=len(PICTURE) - 1)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZIP"])
async def test_a_coded_answer_is_not_unpacked(server: Upstream, coding: str) -> None:
    """A kilobyte of it could become a gigabyte."""

    async def answer(_: Call, wire: Wire) -> None:
        await wire.whole(200, gzip.compress(bytes(1 << 20)), "image/png", content_encoding=coding)

    server.answer = answer
    async with Fetching(here(server)) as get:
        with pytest.raises(FetchFailed, match="coding of its own"):
            await get(f"{server.url}/a.png")


async def test_a_body_that_breaks_off_is_no_picture(server: Upstream) -> None:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nabc")
        wire.hang_up()

    server.answer = answer
    async with Fetching(here(server)) as get:
        with pytest.raises(FetchFailed, match="cannot be reached"):
            await get(f"{server.url}/a.png")


@pytest.mark.parametrize(
    "raw", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 20_000 + b"\r\n\r\n"]
)
async def test_what_is_no_http_is_no_picture(server: Upstream, raw: bytes) -> None:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.raw(raw)
        wire.hang_up()

    server.answer = answer
    async with Fetching(here(server)) as get:
        with pytest.raises(FetchFailed, match="cannot be reached"):
            await get(f"{server.url}/a.png")


# Time.


async def drip(_: Call, wire: Wire) -> None:
    """A byte now and then: no gap is long, the whole is."""
    await wire.begin_stream("image/png")
    while True:
        await wire.piece(b"x")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("script", [silence, drip], ids=["silence", "drip"])
async def test_the_whole_of_a_fetch_has_a_deadline(server: Upstream, script: Answer) -> None:
    server.answer = script
    async with Fetching(here(server)) as get:
        with pytest.raises(FetchFailed, match="in time"):
            await get(f"{server.url}/a.png", patience_s=0.1)
    await server.calls[0].wait_until_ended()

    assert server.calls[0].client_left


async def test_a_name_that_is_never_answered_has_the_same_deadline() -> None:
    async def look_up(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    fetcher = Fetcher(AllowedHosts(["example.com"]), max_fetches=1, look_up=look_up)
    with pytest.raises(FetchFailed, match="in time"):
        await fetcher.fetch(
            fetcher.check("http://example.com/"),
            max_bytes=10,
            deadline=asyncio.get_running_loop().time() + 0.05,
        )
    await fetcher.aclose()


async def test_who_waits_for_a_place_until_the_deadline_is_told_to_come_back(server: Upstream) -> None:
    server.answer = silence
    async with Fetching(here(server), max_fetches=1) as get:
        first = asyncio.create_task(get(f"{server.url}/a.png"))
        await server.wait_for_call()
        with pytest.raises(Overloaded):
            await get(f"{server.url}/b.png", patience_s=0.05)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        server.answer = gives_picture

        assert await get(f"{server.url}/c.png") == PICTURE


async def test_a_fetch_that_is_cancelled_closes_its_connection(server: Upstream) -> None:
    server.answer = silence
    async with Fetching(here(server)) as get:
        fetching = asyncio.create_task(get(f"{server.url}/a.png"))
        call = await server.wait_for_call()
        fetching.cancel()
        await call.wait_until_ended()

        assert call.client_left


async def test_no_connection_is_used_twice(server: Upstream) -> None:
    async with Fetching(here(server)) as get:
        await get(f"{server.url}/a.png")
        await get(f"{server.url}/a.png")

    assert server.connections == 2


async def test_a_proxy_of_the_environment_is_not_used(
    server: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with Fetching(here(server)) as get:
        assert await get(f"{server.url}/a.png") == PICTURE
