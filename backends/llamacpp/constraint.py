"""What an answer has to look like: compiled once by `llguidance`, followed token by token per sequence.

The package is imported and the vocabulary is told to it when the first request needs it: its tables are about 20 MiB
and 0.3 s for 49,152 tokens.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from backends.errors import BackendFailed, InvalidGrammar
from backends.llamacpp.constraint_trial import ConstraintTrial
from backends.llamacpp.lib import llama_tokenize_address
from backends.llamacpp.model import GgufModel

if TYPE_CHECKING:
    import llguidance

Logits = npt.NDArray[np.float32]

MAX_TEXT_BYTES: Final = 512 << 10
"""Of one grammar: what a request may hold (`openai_compat.schemas.limits`), and room for what is put around it."""
MAX_CACHED: Final = 64
MAX_CACHED_BYTES: Final = 4 << 20
"""Of the texts of what is kept; compiled they are about 20 times as large."""
_MAX_REASON_CHARS: Final = 200
_LIMITS: Final[dict[str, Any]] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 10_000,
}
"""What one grammar may cost to compile, and one mask. Beyond them the request fails; nobody else waits for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A constraint as text. `spacing`: llguidance's options for JSON, where `kind` is `json`. `around`: a Lark text
    that calls it `@answer`, for what else the model writes; "" for nothing else."""

    kind: Literal["json", "lark", "regex", "gbnf"]
    text: str
    spacing: tuple[tuple[str, Any], ...] = ()
    around: str = ""
    param: str = field(compare=False)
    """Where it stood in the request; named by errors."""

    @property
    def is_plain(self) -> bool:
        """Nothing in it could cost much: short, and made of our own text and of keywords without regexes."""
        if self.kind in ("regex", "gbnf") or self.param == "structured_outputs.grammar":
            return False
        if any(name == "whitespace_pattern" for name, _ in self.spacing):
            return False
        return len(self.text) <= _PLAIN_CHARS and not any(key in self.text for key in _COSTLY)


_PLAIN_CHARS: Final = 8192
_COSTLY: Final = ('"pattern', '"allOf"', '"multipleOf"')


class Constraint:
    """A compiled constraint, shared by the sequences that are under it."""

    def __init__(self, prototype: llguidance.LLMatcher, num_vocab_tokens: int) -> None:
        self._prototype = prototype
        self._num_vocab_tokens = num_vocab_tokens

    def matcher(self) -> Matcher:
        """At the beginning of an answer. Takes some 10 µs."""
        return Matcher(self._prototype.deep_copy(), self._num_vocab_tokens)


class Matcher:
    """Where one sequence is in its constraint. Not thread-safe."""

    def __init__(self, matcher: llguidance.LLMatcher, num_vocab_tokens: int) -> None:
        self._matcher = matcher
        self._num_vocab_tokens = num_vocab_tokens

    @property
    def is_complete(self) -> bool:
        """The text so far is a whole answer; there may be longer ones."""
        return self._matcher.is_accepting()

    @property
    def is_over(self) -> bool:
        """Nothing but an end may follow."""
        return self._matcher.is_stopped()

    def allowed(self) -> npt.NDArray[np.bool_]:
        """For each token of the vocabulary whether it may come next, ends included. Takes 0.1 to 0.5 ms, mostly without
        the interpreter's lock. Raises: BackendFailed."""
        mask = self._matcher.compute_bitmask()
        self._check()
        bits = np.frombuffer(mask, dtype=np.uint8)
        return np.unpackbits(bits, count=self._num_vocab_tokens, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """Go on by a token that `allowed` has. Raises: BackendFailed."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _sentence(self._matcher.get_error())
            raise BackendFailed(f"The answer's constraint cannot be followed any further: {reason}")


class ConstraintCompiler:
    """Compiles constraints for one model and keeps what was used last. Thread-safe; everything here blocks."""

    def __init__(self, model: GgufModel) -> None:
        self._model = model
        self._trying, self._compiling = threading.Lock(), threading.Lock()
        """One at a time, however many ask; and what is plain waits for no trial."""
        self._lock = threading.Lock()
        self._trial = ConstraintTrial()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._kept: OrderedDict[Source, Constraint] = OrderedDict()
        self._kept_bytes = 0

    def compile(self, source: Source) -> Constraint:
        """Raises: InvalidGrammar with what is wrong, when it cannot be enforced as a whole or costs too much."""
        self._check(source)
        if source.is_plain:
            return self._compiled(source, source)
        with self._trying:
            known = self.kept(source)
            return known if known is not None else self._compiled(source, self._tried(source))

    def _compiled(self, source: Source, tried: Source) -> Constraint:
        with self._compiling:
            made = self.kept(source)
            if made is None:
                made = self._compile(tried)
                self._keep(source, made)
            return made

    def kept(self, source: Source) -> Constraint | None:
        """What was compiled before; never waits for a compilation."""
        with self._lock:
            made = self._kept.get(source)
            if made is not None:
                self._kept.move_to_end(source)
            return made

    def close(self) -> None:
        """End what runs beside it. Nothing may be compiled any more."""
        self._trial.close()

    def _keep(self, source: Source, made: Constraint) -> None:
        with self._lock:
            self._kept[source] = made
            self._kept_bytes += len(source.text)
            while len(self._kept) > MAX_CACHED or self._kept_bytes > MAX_CACHED_BYTES:
                dropped, _ = self._kept.popitem(last=False)
                self._kept_bytes -= len(dropped.text)

    def _check(self, source: Source) -> None:
        if not self._model.end_of_generation:
            raise InvalidGrammar(
                f"{source.param}: this model has no token that ends a text", param=source.param
            )
        if "\0" in source.text:
            raise InvalidGrammar(f"{source.param}: it holds a NUL character", param=source.param)
        try:
            size = len(source.text.encode())
        except UnicodeEncodeError:
            raise InvalidGrammar(f"{source.param}: it holds half a character", param=source.param) from None
        if size > MAX_TEXT_BYTES:
            raise InvalidGrammar(
                f"{source.param}: {size} bytes are more than the limit of {MAX_TEXT_BYTES}",
                param=source.param,
            )

    def _tried(self, source: Source) -> Source:
        """The same for llguidance to compile: GBNF is Lark then."""
        if source.kind == "gbnf":
            lark, problem = self._trial.lark_of(source.text)
            if problem is not None:
                raise InvalidGrammar(f"{source.param}: {problem}", param=source.param)
            source = replace(source, kind="lark", text=lark)
        problem = self._trial.problem(_grammar(source), _LIMITS)
        if problem is not None:
            raise InvalidGrammar(f"{source.param}: {_sentence(problem)}", param=source.param)
        return source

    def _compile(self, source: Source) -> Constraint:
        import llguidance

        grammar = _grammar(source)
        limits = llguidance.LLParserLimits(**_LIMITS, verbose_errors=False)
        prototype = llguidance.LLMatcher(self._told_vocabulary(), grammar, log_level=0, limits=limits)
        if not prototype.is_error():
            # What has no answer at all shows here.
            attempt = prototype.deep_copy()
            attempt.compute_bitmask()
            if not attempt.is_error():
                return Constraint(prototype, self._model.num_vocab_tokens)
            prototype = attempt
        raise InvalidGrammar(f"{source.param}: {_sentence(prototype.get_error())}", param=source.param)

    def _told_vocabulary(self) -> llguidance.LLTokenizer:
        if self._tokenizer is None:
            import llguidance

            model = self._model
            # llguidance calls llama.cpp's tokenizer itself, without the interpreter's lock.
            make: Any = getattr(llguidance.LLTokenizer, "from_llamacpp")  # noqa: B009 - its types do not know it
            self._tokenizer = make(
                tokens=model.vocabulary(),
                vocab_ptr=model.vocab,
                tokenize_fptr=llama_tokenize_address(),
                eos_token=sorted(model.end_of_generation),
                slices=llguidance.LLTokenizer.json_slices(),
            )
        assert self._tokenizer is not None
        return self._tokenizer


def _grammar(source: Source) -> str:
    """llguidance's own form of it."""
    import llguidance

    matcher = llguidance.LLMatcher
    try:
        if source.kind == "json":
            overrides: Any = {"whitespace_flexible": False, **dict(source.spacing), "lenient": False}
            grammar = matcher.grammar_from_json_schema(source.text, overrides=overrides)
        elif source.kind == "regex":
            grammar = matcher.grammar_from_regex(source.text)
        else:
            grammar = matcher.grammar_from_lark(source.text)
    except ValueError as error:
        raise InvalidGrammar(f"{source.param}: {_sentence(str(error))}", param=source.param) from None
    if not source.around:
        return grammar
    (answer,) = msgspec.json.decode(grammar)["grammars"]
    parts = [{"lark_grammar": source.around}, {**answer, "name": "answer"}]
    return msgspec.json.encode({"grammars": parts}).decode()


def _sentence(reason: str) -> str:
    """What llguidance says, in one line and without the state of its parser."""
    first, *others = reason.strip().split("\n")
    if first.startswith("NoExtension"):
        return "nothing satisfies it"
    if "Too many items" in first:
        return "what may come next cannot be found in time, as a text can be read in too many ways"
    if first.startswith(_UNKNOWN_KEYWORDS):
        return f"these keywords cannot be enforced here: {first.removeprefix(_UNKNOWN_KEYWORDS).strip('[]')}"
    details = [line for line in others if line.startswith("error: ")]
    line = " ".join([first, *details[:1]])
    return f"{line[:_MAX_REASON_CHARS]}…" if len(line) > _MAX_REASON_CHARS else line


_UNKNOWN_KEYWORDS: Final = "Unimplemented keys: "
