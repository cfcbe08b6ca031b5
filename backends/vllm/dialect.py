"""What servers of one family call things, and what they take beyond OpenAI's own fields.

A server says which it is in its list of models (`owned_by`). One that is not known gets OpenAI's fields and, of the
extensions, only those a request sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

OPENAI_MAX_STOPS: Final = 4
"""OpenAI's limit of stop strings, and vLLM's (`VLLM_MAX_STOP_STRINGS`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One family of servers.

    `off`: extensions with the value that switches them off, always sent, because the server's own defaults (a model's
    generation config; llama-server's `top_k` of 40) would apply otherwise. `names`: our name -> its name. `grammar`:
    where GBNF text goes; a dotted name is an object's member. `refuses`: what such a server would drop in silence.
    """

    name: str
    off: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    grammar: str | None = None
    refuses: frozenset[str] = frozenset()
    counts_per_chunk: bool = False
    """Takes `continuous_usage_stats` and `return_token_ids`."""
    counts_first_only: bool = False
    """Its usage is that of the first choice of the first prompt."""
    loses_held_text: bool = False
    """Its streams lack what looked like the beginning of a stop string when the answer ended."""
    least_logprobs: int = 0
    """Fewer alternatives than this are no log probabilities at all."""
    takes_structured_outputs: bool = False
    """vLLM's field of that name; other servers would drop it in silence."""
    drops_keywords: bool = False
    """It takes schemas whose keywords it does not enforce (`schemas`), and holds calls to the schemas of `strict`
    functions only."""
    drops_options: bool = False
    """It takes the options in that field and does not look at them."""
    regex: str | None = None
    """Where a regular expression goes."""


_NEUTRAL: Final = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}

GENERIC: Final = Dialect(name="openai", refuses=frozenset({"typical_p", "grammar"}))
VLLM: Final = Dialect(
    name="vllm",
    off=_NEUTRAL,
    grammar="structured_outputs.grammar",  # xgrammar's EBNF is GBNF with the same operators; it must define `root`
    refuses=frozenset({"typical_p"}),
    counts_per_chunk=True,
    takes_structured_outputs=True,
    # As of 0.32 they come from the command line only (`--structured-outputs-config`).
    drops_options=True,
    drops_keywords=True,
)
SGLANG: Final = Dialect(
    name="sglang",
    off={**_NEUTRAL, "top_k": -1},
    grammar="ebnf",
    regex="regex",
    refuses=frozenset({"typical_p"}),
)
LLAMA_SERVER: Final = Dialect(
    name="llama-server",
    off={"top_k": 0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0},
    names={"repetition_penalty": "repeat_penalty"},
    grammar="grammar",
    refuses=frozenset({"min_tokens", "stop_token_ids"}),
    counts_first_only=True,
    loses_held_text=True,
    least_logprobs=1,
)
OURS: Final = Dialect(
    name="llm-inference",
    off={**_NEUTRAL, "typical_p": 1.0},
    grammar="grammar",
    takes_structured_outputs=True,
)

_BY_OWNER: Final = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMA_SERVER}


def dialect_of(entry: Mapping[str, Any]) -> Dialect:
    """The dialect of the server that lists this model."""
    if "backend" in entry and "capabilities" in entry:
        return OURS
    owner = entry.get("owned_by")
    return _BY_OWNER.get(owner, GENERIC) if isinstance(owner, str) else GENERIC
