"""`POST /v1/rerank` and `POST /v1/score`: their fields, and what they become.

Neither is OpenAI's: the first is Cohere's and Jina's, as vLLM takes it, the second is vLLM's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from openai_compat.principals import Privacy
from openai_compat.schemas.fields import Boolean, Integer, Kind, ListOf, Schema, Text
from openai_compat.schemas.problems import INVALID, Loc, Problems
from openai_compat.schemas.table import PRIVACY, ROUTING, Field, Table, check_body, harmless

MAX_DOCUMENTS: Final = 1000


class Document(Kind):
    """A text, or an object that holds one as `text`. Gives the text."""

    _text = Text(min_length=1)

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not dict:
            return self._text.check(value, loc, problems)
        if value.get("text") is None:
            return problems.add("missing", (*loc, "text"), "Field required", value)
        return self._text.check(value["text"], (*loc, "text"), problems)

    @property
    @override
    def schema(self) -> Schema:
        whole = {"type": "object", "properties": {"text": self._text.schema}, "required": ["text"]}
        return {"anyOf": [self._text.schema, whole]}


class Texts(Kind):
    """A text or a list of them. Gives the text as it is, or the list."""

    _text = Text(min_length=1)
    _list = ListOf(_text, min_items=1, max_items=MAX_DOCUMENTS)

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        kind: Kind = self._list if type(value) is list else self._text
        return kind.check(value, loc, problems)

    @property
    @override
    def schema(self) -> Schema:
        return {"anyOf": [self._text.schema, self._list.schema]}


_MODEL: Final[Table] = {
    "model": Field(Text(min_length=1), "A model of GET /v1/models, by id or alias.", required=True),
    "backend": Field(Text(min_length=1), "Serve on this backend: litellm, vllm or llamacpp."),
    "user": harmless(Text(), "An end user's id."),
    "privacy": PRIVACY,
    **ROUTING,
}

RERANK: Final[Table] = {
    "query": Field(Text(min_length=1), "What is looked for.", required=True),
    "documents": Field(
        ListOf(Document(), min_items=1, max_items=MAX_DOCUMENTS), "What is put in order.", required=True
    ),
    "top_n": Field(Integer(1, 2**31 - 1), "Only the best so many; absent: all."),
    "return_documents": Field(Boolean(), "Whether results hold the documents' texts.", default=True),
    **_MODEL,
}

SCORE: Final[Table] = {
    "text_1": Field(Texts(), "A text, or as many as text_2 has.", required=True),
    "text_2": Field(Texts(), "A text or texts to compare with it.", required=True),
    **_MODEL,
}


@dataclass(frozen=True, slots=True)
class RerankBody:
    """A rerank body that met the schema."""

    query: str
    documents: tuple[str, ...]
    top_n: int | None
    returns_documents: bool
    model: str
    backend: str | None
    ignored: tuple[str, ...]
    privacy: Privacy = "any"


@dataclass(frozen=True, slots=True)
class ScoreBody:
    """A score body that met the schema. `queries`: each with the texts it is compared with; the scores' order is that
    of all of them in a row."""

    queries: tuple[tuple[str, tuple[str, ...]], ...]
    model: str
    backend: str | None
    ignored: tuple[str, ...]
    privacy: Privacy = "any"


def read_rerank(body: Mapping[str, Any], *, strict: bool = False) -> RerankBody:
    """Check a body. Raises: ValidationFailed with every problem found."""
    problems = Problems()
    checked = check_body(body, RERANK, problems, strict=strict)
    problems.raise_if_any()
    values = checked.values
    return RerankBody(
        query=values["query"],
        documents=tuple(values["documents"]),
        top_n=values.get("top_n"),
        returns_documents=values.get("return_documents", True),
        model=values["model"],
        backend=values.get("backend"),
        ignored=tuple(checked.ignored),
        privacy=values.get("privacy", "any"),
    )


def read_score(body: Mapping[str, Any], *, strict: bool = False) -> ScoreBody:
    """Check a body. Raises: ValidationFailed with every problem found."""
    problems = Problems()
    checked = check_body(body, SCORE, problems, strict=strict)
    values = checked.values
    first, second = values.get("text_1", INVALID), values.get("text_2", INVALID)
    queries: tuple[tuple[str, tuple[str, ...]], ...] = ()
    if first is not INVALID and second is not INVALID:
        others = (second,) if isinstance(second, str) else tuple(second)
        if isinstance(first, str) or len(first) == 1:
            queries = ((first if isinstance(first, str) else first[0], others),)
        elif len(first) == len(others):
            queries = tuple((text, (other,)) for text, other in zip(first, others, strict=True))
        else:
            msg = f"text_1 holds {len(first)} texts and text_2 {len(others)}: one, or as many as text_2"
            problems.add("value_error", ("text_1",), msg, None)
    problems.raise_if_any()
    return ScoreBody(
        queries=queries,
        model=values["model"],
        backend=values.get("backend"),
        ignored=tuple(checked.ignored),
        privacy=values.get("privacy", "any"),
    )
