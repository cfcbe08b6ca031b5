"""What every POST route does first: read the body as one JSON object and check it, strictly where the caller says so.

What was accepted and does nothing goes into the request's record, from which the outermost layer tells it in the header
of whatever is answered: no route has to think of it.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

from starlette.requests import Request

from openai_compat.record import record_of
from openai_compat.schemas.json_body import parse_object

_TRUE: Final = frozenset({"1", "true", "yes", "on", ""})


class Checked(Protocol):
    """A body that met its schema."""

    @property
    def ignored(self) -> tuple[str, ...]: ...


Asked = TypeVar("Asked", bound=Checked)
Asked_co = TypeVar("Asked_co", bound=Checked, covariant=True)


class Reader(Protocol[Asked_co]):
    """Checks a body. Raises: ValidationFailed."""

    def __call__(self, body: dict[str, Any], /, *, strict: bool) -> Asked_co: ...


async def read_body(request: Request, read: Reader[Asked]) -> Asked:
    """The checked body. Raises: ValidationFailed, RequestTooLarge, ClientDisconnect."""
    asked = read(parse_object(await request.body()), strict=is_strict(request))
    record_of(request.scope).ignored = asked.ignored
    return asked


def is_strict(request: Request) -> bool:
    """`?strict=1`: an unknown field is an error."""
    if not request.scope["query_string"]:
        return False
    value = request.query_params.get("strict")
    return value is not None and value.lower() in _TRUE
