"""`receipt: true`: the field, and what of a body the receipt repeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from openai_compat.schemas.fields import Boolean
from openai_compat.schemas.table import Checked, Field

NAME: Final = "receipt"
RECEIPT: Final = Field(
    Boolean(),
    "Say in `llm_receipt` how the answer was made, and all that it takes to make it again.",
    default=False,
)


def kept_for_receipt(body: Mapping[str, Any], checked: Checked) -> dict[str, Any] | None:
    """The fields that count, as they came; None where no receipt is wanted. What is ignored stays out: it changes
    nothing, and may be anything (an end user's id, a key in the wrong place)."""
    if not checked.values.get(NAME):
        return None
    return {name: body[name] for name in checked.values if name != NAME}
