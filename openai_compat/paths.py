"""Which route a request means: spelling of paths, and the table of what exists.

The table is read from the app's own routes, so that there is one list of them. Every route is protected
unless it stands in `PUBLIC`: a route that somebody adds and forgets to think about needs a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from starlette.routing import BaseRoute, compile_path

from openai_compat.errors import MethodNotAllowed, NotFound

MODEL_PREFIX = "/v1/models/"
PROBES = frozenset({"/livez", "/healthz", "/readyz"})
"""What whoever serves the app answers itself; the app only knows that they are there, and who may not do what."""
PUBLIC = frozenset({"/health", "/ready", "/metrics"}) | PROBES
"""Routes without a token and without a rate limit. (`/metrics` may ask for a token, but never has a
limit.)"""

_SLASHES = re.compile("/{2,}")
_CATCH_ALL = re.compile(r"^/\{[^/{}]*:path\}$")


def normalise_path(path: str, raw_path: bytes | None = None) -> str:
    """`path` (decoded) without trailing slash and without doubled slashes between fixed segments.

    A model id after `/v1/models/` keeps its own slashes, doubled ones too. `raw_path` is the path as it was
    sent: a slash at the end of an id that was sent as `%2F` is part of the id.
    """
    if "//" not in path and not path.endswith("/"):
        return path
    head = re.match(r"/+v1/+models/+", path)
    if head is None:
        return _SLASHES.sub("/", path).rstrip("/") or "/"
    rest = path[head.end() :]
    sent = raw_path if raw_path is not None else path.encode()
    while rest.endswith("/") and sent.endswith(b"/"):
        rest, sent = rest[:-1], sent[:-1]
    return MODEL_PREFIX + rest if rest else MODEL_PREFIX.rstrip("/")


class Route(NamedTuple):
    """One path of the app. `template` is what logs and metrics call it."""

    template: str
    methods: frozenset[str]
    public: bool

    @property
    def allow(self) -> frozenset[str]:
        """The methods to name in `Allow`."""
        return self.methods | {"OPTIONS"} | ({"HEAD"} if "GET" in self.methods else frozenset())

    def require(self, method: str) -> None:
        """Raises MethodNotAllowed unless the route takes `method`."""
        if method not in self.methods:
            raise MethodNotAllowed(self.allow)


class RouteTable:
    """What exists, by path. Fixed paths win over templates, so `GET /v1/models/load` is a wrong method and
    not a model called `load`."""

    def __init__(self, routes: Iterable[tuple[str, Iterable[str]]]) -> None:
        """`routes` are (template, methods) as Starlette writes them; a lone `/{anything:path}` is ignored,
        since it stands for "unknown"."""
        methods: dict[str, frozenset[str]] = {}
        for template, some in routes:
            if not _CATCH_ALL.match(template):
                methods[template] = methods.get(template, frozenset()) | frozenset(some)
        every = [Route(template, found, template in PUBLIC) for template, found in methods.items()]
        self._fixed = {route.template: route for route in every if "{" not in route.template}
        self._patterns = [(compile_path(r.template)[0], r) for r in every if "{" in r.template]

    @classmethod
    def of(cls, routes: Iterable[BaseRoute]) -> RouteTable:
        """The table of an app's `routes`, and of the probes."""
        return cls([*_walk(routes), *((path, ("GET",)) for path in PROBES)])

    def find(self, path: str) -> Route:
        """The route of a normalised path. Raises NotFound."""
        route = self._fixed.get(path)
        if route is not None:
            return route
        for pattern, candidate in self._patterns:
            if pattern.match(path):
                return candidate
        raise NotFound


def _walk(routes: Iterable[BaseRoute]) -> Iterable[tuple[str, Iterable[str]]]:
    for route in routes:
        path, methods = getattr(route, "path", None), getattr(route, "methods", None)
        if isinstance(path, str) and methods:
            yield path, methods
        elif not isinstance(path, str):
            yield from _walk(getattr(route, "routes", None) or ())
