"""How families of models write tool calls, and which of them a chat template belongs to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Family = Literal["hermes", "llama3", "mistral", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """`open`: what announces calls. `close`: what ends one, where something does.

    hermes      <tool_call>{"name": …, "arguments": {…}}</tool_call>, one block per call
    llama3      <|python_tag|> before an object with `parameters`, or nothing before it; `;` between several
    mistral     [TOOL_CALLS] before a list of objects, or before name[ARGS]{…}, the newer form
    plain       as hermes, the tags optional: what models are told that were made for no tools
    """

    family: Family
    open: str
    close: str | None = None
    takes_bare: bool = False
    """An answer that begins with an object naming an offered tool is a call without a marker."""
    takes_lists: bool = False
    """The marker may be followed by a list of calls, or by a name."""
    further_marks: tuple[str, ...] = ()
    """More of the family's marks, within a call."""
    is_named: bool = False
    """A call is written as a name and its arguments, the newer of Mistral's forms."""
    has_short_ids: bool = False
    """A call's id is nine letters and digits."""

    @property
    def is_bare(self) -> bool:
        """Calls are best written without a marker."""
        return self.takes_bare and self.close is None

    @property
    def marks(self) -> tuple[str, ...]:
        """Everything that may be a token of its own and must be seen as text."""
        return (self.open, *((self.close,) if self.close else ()), *self.further_marks)


HERMES: Final = CallFormat(family="hermes", open="<tool_call>", close="</tool_call>")
LLAMA3: Final = CallFormat(family="llama3", open="<|python_tag|>", takes_bare=True)
MISTRAL: Final = CallFormat(
    family="mistral",
    open="[TOOL_CALLS]",
    takes_lists=True,
    further_marks=("[ARGS]", "[CALL_ID]"),
    has_short_ids=True,
)
MISTRAL_NAMED: Final = replace(MISTRAL, is_named=True)
PLAIN: Final = CallFormat(family="plain", open="<tool_call>", close="</tool_call>", takes_bare=True)


def format_of(template: str, *, knows_tools: bool) -> CallFormat:
    """The format of a template's family. `plain` where the template is not given the tools, or asks for calls in a form
    that is not known here (Qwen3-Coder's XML is such a one): then we tell the model how to call."""
    if not knows_tools:
        return PLAIN
    if MISTRAL.open in template:
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
    if HERMES.open in template and "<function=" not in template:
        return HERMES
    if LLAMA3.open in template or ("ipython" in template and '"parameters"' in template):
        return LLAMA3
    return PLAIN
