"""The chat template of a model file: messages to text. Knows no engine; the template is Jinja2 and is not trusted.

Templates are written against Hugging Face's renderer, so its globals and options are given here: `raise_exception`,
`strftime_now`, `tojson` without HTML escapes, `{% break %}`, `{% generation %}`, trimmed blocks.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from typing_extensions import override

from backends.errors import TemplateRefused, UnsupportedParameter
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
        self._template = _environment().from_string(source)
        self._source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, prompt: ChatPrompt) -> str:
        """Text of the conversation as the model wants to read it.

        A role the template does not know is never dropped: `developer` becomes `system`, and where the template leaves
        out a tool, function or developer message, the message goes in under a role that every template knows. Tool
        calls of the history become text where the template knows none.

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
        messages = self._in_known_roles(prompt, [self._adapted(message) for message in prompt.messages])
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

    def _run(self, prompt: ChatPrompt, messages: list[dict[str, Any]]) -> str:
        variables: dict[str, Any] = {
            **prompt.template_kwargs,
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
        if calls := adapted.get("tool_calls"):
            if "tool_calls" in self._source:
                adapted["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
            else:
                adapted["content"] = "\n".join(filter(None, [adapted["content"], *map(_call_as_text, calls)]))
        return adapted


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    # Templates print the arguments with `tojson`; a string would come out quoted twice.
    function = call.get("function", {})
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _call_as_text(call: dict[str, Any]) -> str:
    function = _with_parsed_arguments(call).get("function", {})
    payload = {"name": function.get("name", ""), "arguments": function.get("arguments", {})}
    return f"<tool_call>\n{json.dumps(payload, ensure_ascii=False)}\n</tool_call>"


def _mark(i: int) -> str:
    return f"marked-{i}-9f2c41d7"


def compile_template(
    source: str | None, *, bos_token: str, eos_token: str, warn: Callable[[str], None]
) -> ChatTemplate | None:
    """The model's template, or None where it has none or it does not compile (then `warn` is told why): such a model
    still serves text completions."""
    if not source:
        return None
    try:
        return ChatTemplate(source, bos_token=bos_token, eos_token=eos_token)
    except Exception as error:  # deep nesting and long numbers end in errors of Python's own
        warn(f"the chat template does not compile: {error}")
        return None
