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


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


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

        A role the template does not know is never dropped: `developer` becomes `system`, and where the text of a
        tool, function or developer message is missing from the result, the message goes in under a role that every
        template knows. Tool calls of the history become text where the template knows none.

        Raises: TemplateRefused with the template's own words; UnsupportedParameter for a final message that the
        template changes beyond recognition.
        """
        messages = [self._adapted(message) for message in prompt.messages]
        text = self._run(prompt, messages)
        fallback = [self._as_plain_role(message, text) for message in messages]
        if fallback != messages:
            text = self._run(prompt, fallback)
        if prompt.continue_final_message:
            text = _cut_after_final(text, messages[-1])
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
        try:
            return self._template.render(variables)
        except _Refusal as refusal:
            raise TemplateRefused(
                str(refusal)[:_MAX_MESSAGE_CHARS] or "refused by the chat template"
            ) from refusal
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            # A template that trips over these messages is the caller's 400: the same model answers other messages.
            detail = str(error)[:_MAX_MESSAGE_CHARS]
            raise TemplateRefused(
                f"The model's chat template cannot render these messages: {detail}"
            ) from error
        except (RecursionError, OverflowError, MemoryError) as error:
            raise TemplateRefused("The model's chat template cannot render these messages") from error

    def _adapted(self, message: dict[str, Any]) -> dict[str, Any]:
        adapted = dict(message)
        if adapted["role"] == "developer" and "developer" not in self._source:
            adapted["role"] = "system"
        if calls := adapted.get("tool_calls"):
            if "tool_calls" in self._source:
                adapted["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
            else:
                adapted["content"] = "\n".join(
                    filter(None, [adapted.get("content"), *map(_call_as_text, calls)])
                )
        return adapted

    @staticmethod
    def _as_plain_role(message: dict[str, Any], text: str) -> dict[str, Any]:
        content = message.get("content")
        missing = isinstance(content, str) and content.strip() and content.strip() not in text
        plain = {"tool": "user", "function": "user", "developer": "system"}.get(message["role"])
        return {**message, "role": plain} if missing and plain else message


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


def _cut_after_final(text: str, message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    for candidate in (content, content.strip()):
        start = text.rfind(candidate)
        if candidate and start >= 0:
            return text[: start + len(candidate)]
    raise UnsupportedParameter(
        "continue_final_message: the model's chat template does not keep the final message as it is",
        param="continue_final_message",
    )


def compile_template(
    source: str | None, *, bos_token: str, eos_token: str, warn: Callable[[str], None]
) -> ChatTemplate | None:
    """The model's template, or None where it has none or it does not compile (then `warn` is told why): such a model
    still serves text completions."""
    if not source:
        return None
    try:
        return ChatTemplate(source, bos_token=bos_token, eos_token=eos_token)
    except jinja2.TemplateError as error:
        warn(f"the chat template does not compile: {error}")
        return None
