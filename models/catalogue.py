"""All models that can be named here: the cards of the catalogue file, the files in the model folders, and
what the hub allow-list lets through.

A name is resolved in this order; the first that knows it wins.

1. What cannot be a name (`models.names`) is unknown, and nothing is looked at.
2. A card's id or alias.
3. A file in a model folder: its path there, with or without `.gguf`, or its absolute path. A file that a card
   already points to, or whose id a card has taken, is no second model.
4. What a backend offers of its own accord (`Catalogue.offer`): a model that a remote server lists. Under a name that is
   known already it is one more source of that model.
5. A hub id that matches an allowed pattern: `owner/repo` for vLLM, `owner/repo/file.gguf` for llama.cpp.
6. `prefix/…` for a prefix that a backend offers: whatever a provider calls its models.
7. Unknown, with the names that look alike.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import override

from models import names
from models.card import BackendKind, Capability, FileSource, HubSource, ModelCard, RemoteSource
from models.errors import UnknownModel, UnusableModel
from models.folders import FoundFile, ModelFolders, Stamp, stamp_of
from models.gguf import GgufHeader, read_header
from models.sources import local_path

SHIPPED: Final = Path(__file__).with_name("catalogue.yaml")
"""The catalogue that is used when none is configured."""

_SUFFIX: Final = ".gguf"

_log = logging.getLogger(__name__)


class CatalogueError(Exception):
    """The catalogue file cannot be used. The message names every problem, one per line; it is for the
    operator."""


class CatalogueFile(BaseModel):
    """The catalogue file as a whole."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    models: tuple[ModelCard, ...]
    """The cards, in the order in which they are listed."""


@dataclass(frozen=True, slots=True)
class _View:
    """Everything that follows from one state of the folders. Immutable, replaced as a whole."""

    found: Mapping[str, FoundFile]
    listed: tuple[ModelCard, ...]
    by_name: Mapping[str, ModelCard]


class Catalogue:
    """What can be served. Thread-safe; never awaits. `resolve` and `cards` notice new, changed and vanished
    files by themselves: well under 1 ms while nothing changed, one header read per new file otherwise."""

    def __init__(
        self, cards: Sequence[ModelCard], *, model_dirs: Sequence[Path] = (), hub_allow: Sequence[str] = ()
    ) -> None:
        """Raises: CatalogueError if two cards share a name."""
        self._cards = tuple(cards)
        self._hub_allow = tuple(hub_allow)
        self._folders = ModelFolders(model_dirs)
        self._offered: dict[BackendKind, dict[str, ModelCard]] = {}
        self._prefixes: dict[str, BackendKind] = {}
        self._reported: set[str] = set()
        self._outside: dict[Path, tuple[Stamp, GgufHeader | None]] = {}
        problems = _shared_names(self._cards)
        if problems:
            raise CatalogueError("\n".join(problems))
        self._view = self._look(self._folders.scan())

    @classmethod
    def load(
        cls, path: Path | None, *, model_dirs: Sequence[Path] = (), hub_allow: Sequence[str] = ()
    ) -> Catalogue:
        """Read the catalogue file (`None`: the shipped one) and look through the model folders once.

        Raises: CatalogueError naming the file and everything that is wrong in it.
        """
        path = path or SHIPPED
        try:
            return cls(read_catalogue(path), model_dirs=model_dirs, hub_allow=hub_allow)
        except CatalogueError as error:
            raise CatalogueError(f"The catalogue {path} cannot be used:\n{error}") from error

    def resolve(self, name: str) -> ModelCard:
        """The card that `name` stands for (the order is the module's). A file that is there but broken has a
        card too, so that loading it can say what is wrong with it.

        Raises: UnknownModel.
        """
        if not names.is_safe(name):
            raise UnknownModel(name)
        name = names.normalise(name)
        card = self._known(name)
        if card is not None:
            return card
        hub = names.split_hub_name(name)
        if hub is not None and names.is_allowed(name, self._hub_allow):
            return _hub_card(name, *hub)
        prefix, slash, _ = name.partition("/")
        if slash and prefix in self._prefixes:
            return remote_card(name, self._prefixes[prefix])
        known = (other for card in self._view.listed for other in (card.id, *card.aliases))
        raise UnknownModel(name, names.near(name, known))

    def cards(self, backend: str | None = None) -> tuple[ModelCard, ...]:
        """All cards and usable files, those with a source for `backend` if one is given: cards in the file's
        order, then files by folder and name."""
        listed = self._current().listed
        return listed if backend is None else tuple(card for card in listed if backend in card.sources)

    def offer(
        self, backend: BackendKind, cards: Sequence[ModelCard], *, prefixes: Sequence[str] = ()
    ) -> None:
        """What a backend serves without a card, in place of what it offered before. Each has one source, a remote name
        on that backend; it takes the place of a hub or file source that a card names for it. `prefixes`: it also serves
        any name that begins with one of them and a slash."""
        self._offered[backend] = {card.id: card for card in cards}
        self._prefixes = {key: kind for key, kind in self._prefixes.items() if kind != backend}
        self._prefixes.update(dict.fromkeys(prefixes, backend))
        self._view = self._look(self._folders.scan())

    def offered(self, backend: BackendKind, name: str) -> ModelCard | None:
        """What a backend itself says of a model, by its name there, with or without its provider before it."""
        cards = self._offered.get(backend, {})
        if name in cards:
            return cards[name]
        provider, _, rest = name.partition("/")
        found = cards.get(rest)
        return found if found is not None and found.owned_by == provider else None

    def has_offers(self, backend: str) -> bool:
        """Whether the backend has said by now what it serves without a card."""
        return backend in self._offered

    def broken(self) -> Mapping[str, str]:
        """Id -> why, for the files in the model folders that cannot be served."""
        return {file.id: file.problem for file in self._current().found.values() if file.problem}

    def _known(self, name: str) -> ModelCard | None:
        by_name = self._current().by_name
        if name.startswith("/"):
            inside = self._folders.relative(name)
            if inside is None:
                return None
            name = inside
        return by_name.get(name)

    def _current(self) -> _View:
        found = self._folders.scan()
        view = self._view
        if view.found is not found:
            view = self._view = self._look(found)
        return view

    def _look(self, found: Mapping[str, FoundFile]) -> _View:
        headers = {file.path: file.header for file in found.values()}
        cards = tuple(self._completed(self._placed(card), headers) for card in self._cards)
        by_name = {name: card for card in cards for name in (card.id, *card.aliases)}
        claimed = {Path(path): card for card in cards for path in _file_paths(card)}
        listed = list(cards)
        other_names: dict[str, ModelCard] = {}
        for file in found.values():
            card = claimed.get(file.path)
            if card is None and file.id in by_name:
                self._report(f"the file {file.path} is hidden by the card {by_name[file.id].id!r}")
                continue
            if card is None:
                card = _card_of(file)
                if file.header is not None:
                    listed.append(card)
            by_name.setdefault(file.id, card)
            other_names.update(dict.fromkeys(_other_names(file), card))
        by_name = {**other_names, **by_name}
        for kind, cards_offered in self._offered.items():
            for card in cards_offered.values():
                _join(card, kind, listed, by_name)
        return _View(found, tuple(listed), by_name)

    def _completed(self, card: ModelCard, headers: Mapping[Path, GgufHeader | None]) -> ModelCard:
        """The card with what it leaves open read from its file, where that is here already."""
        given = card.model_fields_set
        if "context_length" in given and "capabilities" in given:
            return card
        path = local_path(card, "llamacpp")
        if path is None:
            return card
        header = headers[path] if path in headers else self._header(path)
        if header is None:
            return card
        update: dict[str, Any] = {}
        if card.context_length is None:
            update["context_length"] = header.context_length
        if "capabilities" not in given:
            update["capabilities"] = capabilities_of(header, has_template=card.chat_template is not None)
        return card.model_copy(update=update)

    def _header(self, path: Path) -> GgufHeader | None:
        """Of a file outside the model folders; read again only when it changed."""
        stamp = stamp_of(path)
        known = self._outside.get(path)
        if known is None or known[0] != stamp:
            known = self._outside[path] = (stamp, _try_header(path))
        return known[1]

    def _placed(self, card: ModelCard) -> ModelCard:
        """The card with its files' paths made absolute: the first model folder that has the file."""
        sources = dict(card.sources)
        for kind, source in card.sources.items():
            if isinstance(source, FileSource):
                sources[kind] = FileSource(path=str(self._place(source.path)))
        return card if sources == card.sources else card.model_copy(update={"sources": sources})

    def _place(self, path: str) -> Path:
        relative = Path(path).expanduser()
        places = [folder.resolve() / relative for folder in self._folders.folders] or [Path.cwd() / relative]
        return next((place for place in places if place.exists()), places[0])

    def _report(self, message: str) -> None:
        if message not in self._reported:
            self._reported.add(message)
            _log.warning("%s", message)


def read_catalogue(path: Path) -> tuple[ModelCard, ...]:
    """The cards of one catalogue file.

    Raises: CatalogueError listing every problem in it, one per line.
    """
    try:
        data = _read_yaml(path)
        return CatalogueFile.model_validate(data).models
    except OSError as error:
        raise CatalogueError(f"it cannot be read: {(error.strerror or str(error)).lower()}") from error
    except ValidationError as error:
        # A card's backend is only missing where its sources are, which is a problem of its own.
        problems = [
            problem
            for problem in error.errors()
            if (problem["type"], problem["loc"][-1:]) != ("missing", ("backend",))
        ]
        raise CatalogueError("\n".join(_sentence(problem, data) for problem in problems)) from error


def _read_yaml(path: Path) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML takes the last of two equal keys in silence; a card would lose its first half."""

        @override
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise CatalogueError(f"line {node.start_mark.line + 1}: the key {key!r} appears twice")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(path.read_bytes(), Loader)  # noqa: S506 - derived from SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise CatalogueError(f"{where}it is not YAML: {getattr(error, 'problem', None) or error}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise CatalogueError("it is not YAML") from error


def _sentence(problem: ErrorDetails, data: Any) -> str:
    loc = list(problem["loc"])
    where = ""
    if len(loc) >= 2 and loc[0] == "models" and isinstance(loc[1], int):
        card = data["models"][loc[1]]
        name = card.get("id") if isinstance(card, dict) else None
        where = f"model {name!r}: " if isinstance(name, str) else f"model number {loc[1] + 1}: "
        loc = loc[2:]
    if len(loc) >= 3 and loc[0] == "sources":
        del loc[2]  # which form of source pydantic tried
    field = ".".join(map(str, loc))
    message = problem["msg"].removeprefix("Value error, ")
    message = _PLAINER.get(problem["type"], message)
    field = field or ("" if where else "the whole file")
    return f"{where}{field}{': ' if field else ''}{message[:1].lower()}{message[1:]}"


_PLAINER: Final = {
    "extra_forbidden": "is not an option",
    "model_type": "should be options with their values, as in 'key: value'",
    "tuple_type": "should be a list",
}
"""What pydantic says in the words of Python."""


def _shared_names(cards: Sequence[ModelCard]) -> list[str]:
    owners: dict[str, str] = {}
    problems = []
    for card in cards:
        for name in (card.id, *card.aliases):
            if name in owners:
                problems.append(f"the name {name!r} is used by {owners[name]!r} and again by {card.id!r}")
            owners[name] = card.id
    return problems


def _join(
    offered: ModelCard, kind: BackendKind, listed: list[ModelCard], by_name: dict[str, ModelCard]
) -> None:
    """Put an offered card among the others, or its source into the card that has its name."""
    known = by_name.get(offered.id)
    if known is None:
        listed.append(offered)
        by_name[offered.id] = offered
    elif not isinstance(known.sources.get(kind), RemoteSource):
        sources = {**known.sources, kind: offered.sources[kind]}
        joined = known.model_copy(update={"sources": sources})
        listed[:] = [joined if card is known else card for card in listed]
        by_name.update({name: joined for name, card in by_name.items() if card is known})


def _file_paths(card: ModelCard) -> tuple[str, ...]:
    return tuple(source.path for source in card.sources.values() if isinstance(source, FileSource))


def _try_header(path: Path) -> GgufHeader | None:
    try:
        return read_header(path)
    except UnusableModel as error:
        _log.warning("%s: %s", path, error.message)
        return None


_TELLS_TOOLS = re.compile(r"\btools\b")
_TELLS_REASONING = re.compile(
    r"</?think>|\[THINK\]|<\|START_THINKING\|>|\benable_thinking\b|\breasoning_effort\b"
)


def capabilities_of(header: GgufHeader, *, has_template: bool = False) -> tuple[Capability, ...]:
    """What a GGUF can be asked for. A base model, which has no chat template, only completes text; a template that
    names tools or thoughts belongs to a model that was made for them."""
    if header.is_reranker:
        return ("rerank",)
    if header.has_pooling:
        return ("embeddings",)
    if not (has_template or header.chat_template):
        return ("completion",)
    template = header.chat_template or ""
    beside: list[Capability] = []
    if _TELLS_TOOLS.search(template):
        beside.append("tools")
    if _TELLS_REASONING.search(template):
        beside.append("reasoning")
    return ("chat", "completion", *beside)


def _other_names(file: FoundFile) -> tuple[str, ...]:
    """With its suffix, and for a sharded model the names of its first file."""
    folder = file.id.rpartition("/")[0]
    written = names.normalise(f"{folder}/{file.path.name}" if folder else file.path.name)
    return (file.id + _SUFFIX, written, written[: -len(_SUFFIX)])


def _card_of(file: FoundFile) -> ModelCard:
    header = file.header
    return ModelCard(
        id=file.id,
        backend="llamacpp",
        sources={"llamacpp": FileSource(path=str(file.path))},
        context_length=header.context_length if header else None,
        capabilities=capabilities_of(header) if header else ("chat", "completion"),
        created=max(0, file.created),
    )


@lru_cache(maxsize=1024)
def remote_card(name: str, backend: BackendKind) -> ModelCard:
    """The card of a model that nobody described, under the name it has at whoever serves it. Nothing is known of what
    it can do, so nothing is refused for it here.

    Raises: UnknownModel for what cannot be a name.
    """
    if not names.is_safe(name) or name.startswith("/"):
        raise UnknownModel(name)
    return ModelCard(
        id=name,
        backend=backend,
        sources={backend: RemoteSource(name=name)},
        capabilities=get_args(Capability),
        owned_by=name.partition("/")[0][:128],
    )


def _hub_card(name: str, repo: str, file: str | None) -> ModelCard:
    kind: BackendKind = "vllm" if file is None else "llamacpp"
    owner = repo.partition("/")[0]
    return ModelCard(id=name, backend=kind, sources={kind: HubSource(repo=repo, file=file)}, owned_by=owner)


def schema_text() -> str:
    """The catalogue file's JSON schema, as `models/catalogue.schema.json` holds it."""
    schema = CatalogueFile.model_json_schema()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
