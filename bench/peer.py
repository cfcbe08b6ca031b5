"""Another server on the same weights, up beside ours, for `compare`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp

from bench.load import Body
from bench.processes import Server


def as_it_is(body: Body) -> Body:
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What has to be known about a server to take turns with it."""

    name: str
    server: Server
    ready: str
    """The path that answers 200 once it serves."""
    count_tokens: Callable[[aiohttp.ClientSession, Server, str], Awaitable[int]]
    """How many tokens its vocabulary, which is ours too, makes of a text. Raises: ServerFailed."""
    body: Callable[[Body], Body] = as_it_is
    """A request in the words that this server knows, where it knows others."""
    settings: str = ""
    """What it was started with, for the report."""
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
