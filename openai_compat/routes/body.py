"""What every POST route does first: read the body as one JSON object, and see whether the caller is
strict."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request

from openai_compat.schemas.json_body import parse_object

_TRUE: Final = frozenset({"1", "true", "yes", "on", ""})


async def read_object(request: Request) -> dict[str, Any]:
    """The body. Raises: ValidationFailed, RequestTooLarge, ClientDisconnect."""
    return parse_object(await request.body())


def is_strict(request: Request) -> bool:
    """`?strict=1`: an unknown field is an error."""
    if not request.scope["query_string"]:
        return False
    value = request.query_params.get("strict")
    return value is not None and value.lower() in _TRUE
