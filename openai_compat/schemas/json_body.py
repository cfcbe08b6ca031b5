"""From the bytes of a body to a JSON object, or one 422 entry that says where it broke.

Strict on purpose: what a lenient parser lets through (NaN, 1e400, half a surrogate pair) can neither be
quoted back as JSON nor tokenised. msgspec refuses all of them, and bounds nesting by the recursion limit.
A key that is given twice keeps its last value, as every common JSON parser does.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from openai_compat.errors import ValidationFailed

_decode: Final = msgspec.json.Decoder().decode
_QUOTED_BYTES: Final = 64
"""How much of an unreadable body is quoted: enough to recognise it, never the whole prompt."""


def parse_object(body: bytes) -> dict[str, Any]:
    """Decode a body that must be one JSON object.

    Raises: ValidationFailed with one entry whose `loc` is `["body"]`; `msg` names the byte where it is known.
    """
    try:
        value = _decode(body)
    except RecursionError:
        raise ValidationFailed.of(["body"], "JSON is nested too deeply", kind="json_invalid") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unreadable(body, error) from None
    if type(value) is not dict:
        raise ValidationFailed.of(["body"], "Input should be a JSON object", value, kind="dict_type")
    return value


def _unreadable(body: bytes, error: Exception) -> ValidationFailed:
    if not body.strip():
        reason = "the body is empty"
    elif isinstance(error, UnicodeDecodeError):
        reason = "the body is not UTF-8"
    else:
        reason = str(error).removeprefix("JSON is malformed: ")
    quoted = body[:_QUOTED_BYTES].decode("utf-8", "replace")
    return ValidationFailed.of(["body"], f"JSON decode error: {reason}", quoted, kind="json_invalid")
