"""The chat template of a model file: messages to text. Knows no engine; the template is Jinja2 and is not trusted.

Templates are written against Hugging Face's renderer, so its globals and options are given here: `raise_exception`,
`strftime_now`, `tojson` without HTML escapes, `{% break %}`, `{% generation %}`, trimmed blocks.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import msgspec
from typing_extensions import override

from backends.errors import TemplateRefused, UnsupportedParameter
from backends.llamacpp.described import described, with_calls_as_text
from backends.llamacpp.history import with_arguments_as_objects, with_short_ids
from backends.parsing.formats import PLAIN, format_of
from backends.parsing.reasoning import ThoughtMarkers, markers_of
from backends.types import ChatPrompt

_MAX_MESSAGE_CHARS = 500
"""How much of a template's own complaint is shown to the caller."""
_PLAIN_ROLES = {"tool": "user", "function": "user", "developer": "system"}
"""Roles that a template may not know, and what their messages become there."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; when serving it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    @override
    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refusal(Exception):
    """Raised by a template through `raise_exception`."""


def _raise_exception(message: str) -> None:
    raise _Refusal(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """One compiled template with the special tokens it may print.

    Raises jinja2.TemplateSyntaxError when `source` is no template.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        environment = _environment()
        self._template = environment.from_string(source)
        self._source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
        """Names the template looks up, the conversation's own among them."""
        self.call_format = format_of(source, knows_tools="tools" in self.variables)
        self.thought_markers = markers_of(source)

    def render(self, prompt: ChatPrompt) -> str:
        """Text of the conversation as the model wants to read it.

        A role the template does not know is never dropped: `developer` becomes `system`, and where the template leaves
        out a tool, function or developer message, the message goes in under a role that every template knows. Where the
        template knows no tools they are described in the system turn, and calls of the history become text.

        Raises: TemplateRefused with the template's own words; UnsupportedParameter for a final message that the
        template changes beyond recognition.
        """
        try:
            return self._rendered(prompt)
        except _Refusal as refusal:
            words = str(refusal)[:_MAX_MESSAGE_CHARS]
            raise TemplateRefused(words or "refused by the chat template") from refusal
        except UnsupportedParameter:
            raise
        except (RecursionError, OverflowError, MemoryError) as error:
            raise TemplateRefused("The model's chat template cannot render these messages") from error
        except Exception as error:
            # The template is a program of somebody else's, and any error may come out of it. One that trips over these
            # messages is the caller's 400: the same model answers other messages.
            detail = str(error)[:_MAX_MESSAGE_CHARS]
            raise TemplateRefused(
                f"The model's chat template cannot render these messages: {detail}"
            ) from error

    def _rendered(self, prompt: ChatPrompt) -> str:
        tools = prompt.tools if self.call_format is PLAIN else None
        if tools:
            prompt = msgspec.structs.replace(prompt, tools=None)
        messages = [self._adapted(message) for message in prompt.messages]
        messages = self._with_history(messages, as_text=bool(tools) or "tool_calls" not in self._source)
        messages = self._in_known_roles(prompt, messages)
        return (
            self._with_tools_described(prompt, tools, messages) if tools else self._written(prompt, messages)
        )

    def _written(self, prompt: ChatPrompt, messages: list[dict[str, Any]]) -> str:
        if not prompt.continue_final_message:
            return self._run(prompt, messages)
        # The mark says where the final message ends; its own text may occur again in what the template puts after it.
        last = messages[-1]
        marked = {**last, "content": f"{last['content']}{_mark(0)}"}
        text, mark, _ = self._run(prompt, [*messages[:-1], marked]).rpartition(_mark(0))
        if not mark:
            raise UnsupportedParameter(
                "continue_final_message: the model's chat template does not keep the final message as it is",
                param="continue_final_message",
            )
        return text

    def _with_tools_described(
        self, prompt: ChatPrompt, tools: list[dict[str, Any]], messages: list[dict[str, Any]]
    ) -> str:
        """In the system turn, or, where the template takes none, before what the user says first."""
        try:
            return self._written(prompt, described(tools, messages, role="system"))
        except _Refusal:
            return self._written(prompt, described(tools, messages, role="user"))

    def _with_history(self, messages: list[dict[str, Any]], *, as_text: bool) -> list[dict[str, Any]]:
        """Calls and results as this template's family has them. A model that is told how to call shall see calls of
        that form, whatever its template makes of them."""
        if not any(message.get("tool_calls") or message["role"] == "tool" for message in messages):
            return messages
        if as_text:
            return [with_calls_as_text(message) for message in messages]
        if self.call_format.has_short_ids:
            messages = with_short_ids(messages)
        return messages if self._takes_text else [with_arguments_as_objects(message) for message in messages]

    @functools.cached_property
    def _takes_text(self) -> bool:
        """Whether the arguments of a call are JSON text to this template. Most print them with `tojson`, or go through
        their members; found out with a call, because some of both kinds look alike."""
        call = {"id": "abcdefgh0", "type": "function", "function": {"name": "f", "arguments": '{"probe": 1}'}}
        talk: list[dict[str, Any]] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "1", "name": "f", "tool_call_id": "abcdefgh0"},
        ]
        as_objects = self._probed([with_arguments_as_objects(message) for message in talk])
        return "'probe'" in as_objects if as_objects is not None else self._probed(talk) is not None

    def _probed(self, talk: list[dict[str, Any]]) -> str | None:
        """What becomes of a conversation of ours; None where the template cannot take it."""
        try:
            return self._run(ChatPrompt(messages=talk, add_generation_prompt=False), talk)
        except Exception:  # a template is somebody else's program
            return None

    def _run(self, prompt: ChatPrompt, messages: list[dict[str, Any]]) -> str:
        variables: dict[str, Any] = {
            **{name: value for name, value in prompt.template_kwargs.items() if name != "tools"},
            **self._tokens,
            "messages": messages,
            "add_generation_prompt": prompt.add_generation_prompt and not prompt.continue_final_message,
        }
        if prompt.tools:
            variables["tools"] = prompt.tools
        return self._template.render(variables)

    def _in_known_roles(self, prompt: ChatPrompt, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages, those that the template leaves out under another role. Found out with marks as their content,
        because their own text may also stand elsewhere, or come out escaped."""
        doubtful = [i for i, message in enumerate(messages) if message["role"] in _PLAIN_ROLES]
        if not doubtful:
            return messages
        marked = list(messages)
        for i in doubtful:
            marked[i] = {**messages[i], "content": _mark(i)}
        text = self._run(prompt, marked)
        known = list(messages)
        for i in doubtful:
            if _mark(i) not in text:
                known[i] = {**messages[i], "role": _PLAIN_ROLES[messages[i]["role"]]}
        return known

    def _adapted(self, message: dict[str, Any]) -> dict[str, Any]:
        adapted = {**message, "content": message.get("content") or ""}
        if adapted["role"] == "developer" and "developer" not in self._source:
            adapted["role"] = "system"
        return adapted


def _mark(i: int) -> str:
    return f"marked-{i}-9f2c41d7"


def compile_template(
    source: str | None,
    *,
    bos_token: str,
    eos_token: str,
    warn: Callable[[str], None],
    thought_markers: ThoughtMarkers | None = None,
) -> ChatTemplate | None:
    """The model's template, or None where it has none or it does not compile (then `warn` is told why): such a model
    still serves text completions. `thought_markers`: None reads them from the template."""
    if not source:
        return None
    try:
        template = ChatTemplate(source, bos_token=bos_token, eos_token=eos_token)
    except Exception as error:  # deep nesting and long numbers end in errors of Python's own
        warn(f"the chat template does not compile: {error}")
        return None
    template.thought_markers = thought_markers or template.thought_markers
    return template
