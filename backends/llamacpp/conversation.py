"""What a chat request asks of this model: what its template is told of tools and thinking, what the answer may look
like, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from backends.errors import UnsupportedParameter
from backends.llamacpp.constraint import Source
from backends.llamacpp.model import GgufModel
from backends.llamacpp.template import ChatTemplate
from backends.llamacpp.tool_grammar import (
    Marks,
    ThoughtMarks,
    around_answer,
    call_or_answer,
    may_call,
    must_call,
)
from backends.parsing.answer import Grammar
from backends.parsing.reasoning import ThoughtMarkers
from backends.types import ChatPrompt, GenerationRequest, Prompt

_SWITCHES: Final = ("enable_thinking", "thinking")
"""What templates call the variable that turns thoughts on or off."""
_EFFORT: Final = "reasoning_effort"
_TAIL_TOKENS: Final = 16
"""Of a prompt's end: more than any template writes after the mark that opens a thought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How an answer is to be written and read.

    `source`: what constrains calls in it, or None. `around`: what stands around, or beside, an answer that the request
    itself constrains (`Source.around`). `shown`: control tokens that are to be seen as text, because they are marks.
    """

    grammar: Grammar
    source: Source | None = None
    around: str = ""
    shown: Mapping[int, bytes] = field(default_factory=dict)


def told(request: GenerationRequest, template: ChatTemplate | None) -> GenerationRequest:
    """The request with its prompts as the template is to be told them: without tools that must not be called, with the
    variables that an effort stands for.

    Raises: UnsupportedParameter for an effort that the template knows nothing of.
    """
    if template is None:
        return request
    prompts = tuple(
        _told(prompt, request, template) if isinstance(prompt, ChatPrompt) else prompt
        for prompt in request.prompts
    )
    return msgspec.structs.replace(request, prompts=prompts)


def _told(prompt: ChatPrompt, request: GenerationRequest, template: ChatTemplate) -> ChatPrompt:
    if request.tool_choice == "none" and prompt.tools:
        prompt = msgspec.structs.replace(prompt, tools=None)
    effort = request.reasoning_effort
    if effort is None:
        return prompt
    told: dict[str, object] = {name: effort != "none" for name in _SWITCHES if name in template.variables}
    if _EFFORT in template.variables:
        told[_EFFORT] = effort
    if not told:
        raise UnsupportedParameter(
            f"{_EFFORT}: the model's chat template has no variable for it", param=_EFFORT
        )
    return msgspec.structs.replace(prompt, template_kwargs={**told, **prompt.template_kwargs})


def manner_of(
    request: GenerationRequest,
    prompt: Prompt,
    tokens: Sequence[int],
    template: ChatTemplate,
    model: GgufModel,
) -> Manner | None:
    """The manner of the answers to a prompt that was made of `tokens`; None where they are text and nothing else.

    Raises: InvalidGrammar, UnsupportedParameter.
    """
    if not isinstance(prompt, ChatPrompt):
        return None
    thoughts, begins_inside = _thoughts(prompt, tokens, template.thought_markers, model)
    tools = prompt.tools
    if not tools and thoughts is None:
        return None
    form = template.call_format if tools else None
    marks = [*(form.marks if form else ()), *(thoughts or ())]
    special = {mark: token for mark in marks if (token := _control_token(mark, model)) is not None}
    known: dict[str, Any] = {"thoughts": thoughts, "begins_inside": begins_inside, "tokens": special}
    grammar = Grammar(
        thoughts=thoughts,
        begins_inside=begins_inside,
        calls=form,
        names=frozenset(tool["function"]["name"] for tool in tools or ()),
    )
    shown = {token: mark.encode() for mark, token in special.items()}
    if not tools or form is None:
        return Manner(grammar=grammar, around=around_answer(ThoughtMarks(**known)), shown=shown)
    calling = _Calling(tools, Marks(form=form, **known), knows_tools="tools" in template.variables)
    if _constrained_by(request) is not None:
        return Manner(grammar=grammar, around=calling.beside_answer(request), shown=shown)
    lark = calling.lark(request)
    source = None if lark is None else Source(kind="lark", text=lark, param="tools")
    return Manner(grammar=grammar, source=source, shown=shown)


def _constrained_by(request: GenerationRequest) -> str | None:
    """The field that says what the answer has to look like, where one does."""
    if request.response_format is not None:
        return "response_format"
    if request.structured_outputs is not None:
        return "structured_outputs"
    return "grammar" if request.sampling.grammar is not None else None


class _Calling:
    """The constraints that a request's choice of tools makes."""

    def __init__(self, tools: list[dict[str, Any]], marks: Marks, *, knows_tools: bool) -> None:
        self._tools = tools
        self._marks = marks
        self._knows_tools = knows_tools

    def lark(self, request: GenerationRequest) -> str | None:
        """None where the model may write what it likes."""
        choice, several = request.tool_choice, request.parallel_tool_calls
        if isinstance(choice, dict):
            name = choice["function"]["name"]
            named = [tool for tool in self._tools if tool["function"]["name"] == name]
            return must_call(named, self._marks, several=False)
        if choice == "required":
            return must_call(self._tools, self._marks, several=self._several(several))
        if several is False or any(tool["function"].get("strict") is True for tool in self._tools):
            return may_call(self._tools, self._marks, several=several is not False)
        return None

    def beside_answer(self, request: GenerationRequest) -> str:
        """Calls, or the answer that another constraint of the request is about."""
        if request.tool_choice not in (None, "auto"):
            name = _constrained_by(request)
            raise UnsupportedParameter(
                f"{name}: with this 'tool_choice' there is no answer but calls", param=name
            )
        several = self._several(request.parallel_tool_calls)
        return call_or_answer(self._tools, self._marks, several=several)

    def _several(self, asked: bool | None) -> bool:
        """A model that was made for no tools goes on calling without end."""
        return self._knows_tools if asked is None else asked


def _thoughts(
    prompt: ChatPrompt, tokens: Sequence[int], markers: ThoughtMarkers | None, model: GgufModel
) -> tuple[ThoughtMarkers | None, bool]:
    """The markers that the answer may hold, and whether it begins between them."""
    if markers is None:
        return None, False
    if prompt.continue_final_message:
        content = prompt.messages[-1].get("content") or ""
        begun, ended = content.rfind(markers.open), content.rfind(markers.close)
        return (markers, True) if begun > ended else (markers if begun < 0 else None, False)
    tail = b"".join(map(model.printable_piece, tokens[-_TAIL_TOKENS:])).decode("utf-8", "replace").rstrip()
    if tail.endswith(markers.close):
        return None, False
    return markers, tail.endswith(markers.open)


def _control_token(mark: str, model: GgufModel) -> int | None:
    """The token that a mark is, where its text is not seen otherwise."""
    tokens = model.tokenize(mark, add_special=False, parse_special=True)
    return tokens[0] if len(tokens) == 1 and not model.piece(tokens[0]) else None
