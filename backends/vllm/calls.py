"""Tools as vLLM has to be told them, so that it holds calls to what the contract says.

It confines the arguments of `strict` functions only. A constraint of the answer (`response_format` and the like) it
drops in silence where a call must come, and where one may come it lets none come unless a function is strict.
"""

from __future__ import annotations

from typing import Any, Final

from backends.errors import InvalidGrammar, UnsupportedParameter
from backends.types import GenerationRequest
from backends.vllm.schemas import unenforced_in_calls

Tool = dict[str, Any]

_NOTHING: Final = {"type": "object", "properties": {}, "additionalProperties": False}
"""The arguments of a function that says nothing of them. vLLM would take any JSON for them."""


def told_tools(request: GenerationRequest, tools: list[Tool]) -> list[Tool]:
    """The same tools; `strict` are those whose calls are to be held to their schemas.

    Raises: InvalidGrammar for a schema that calls would not be held to; UnsupportedParameter for a constraint of the
    answer that would be dropped, or would leave no room for calls.
    """
    choice = request.tool_choice
    if choice == "none":
        return tools
    beside = constraint_of(request)
    must_call = choice not in (None, "auto")
    if must_call and beside is not None:
        raise UnsupportedParameter(
            f"{beside}: with this 'tool_choice' there is no answer but calls", param=beside
        )
    name = choice["function"]["name"] if isinstance(choice, dict) else None
    told = []
    for number, tool in enumerate(tools):
        is_meant = must_call and name in (None, tool["function"]["name"])
        told.append(_told(tool, number, is_meant=is_meant, if_possible=beside is not None))
    if beside is not None and not any(tool["function"].get("strict") is True for tool in told):
        raise UnsupportedParameter(
            f"{beside}: beside functions that are not 'strict', or cannot be, vLLM would let no call come",
            param=beside,
        )
    return told


def constraint_of(request: GenerationRequest) -> str | None:
    """The field that says what the answer has to look like, where one does."""
    given = {
        "response_format": request.response_format,
        "structured_outputs": request.structured_outputs,
        "grammar": request.sampling.grammar,
    }
    return next((name for name, value in given.items() if value is not None), None)


def _told(tool: Tool, number: int, *, is_meant: bool, if_possible: bool) -> Tool:
    """`is_meant`: it may be the one that must be called."""
    function = tool["function"]
    strict = function.get("strict")
    must_hold = strict is True or (strict is None and is_meant)
    if not must_hold and not (strict is None and if_possible):
        return tool
    parameters = function.get("parameters") or _NOTHING
    if (keyword := unenforced_in_calls(parameters)) is not None:
        if not must_hold:
            return tool
        place = f"tools[{number}].function.parameters"
        raise InvalidGrammar(f"{place}: vLLM would not enforce {keyword!r} where it stands here", param=place)
    return {**tool, "function": {**function, "parameters": parameters, "strict": True}}
