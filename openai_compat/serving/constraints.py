"""The schemas of a request against their limits, before it takes a slot."""

from __future__ import annotations

from openai_compat.schemas.chat import ChatRequest
from openai_compat.schemas.completions import CompletionRequest
from openai_compat.schemas.limits import check_response_format, check_structured_outputs, check_tools


def check_constraints(asked: ChatRequest | CompletionRequest) -> None:
    """Raises: InvalidGrammar naming the place of what is too large."""
    check_response_format(asked.response_format)
    check_structured_outputs(asked.structured_outputs)
    if isinstance(asked, ChatRequest) and asked.tools is not None:
        must_call = asked.tool_choice not in (None, "auto", "none")
        check_tools(asked.tools, enforced=must_call, field=asked.tools_field)
