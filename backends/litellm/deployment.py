"""What LiteLLM knows of one model: who serves it, what it takes, what it costs. Names are resolved here.

1. The name of a card is what its source says.
2. `provider/model` for a provider that LiteLLM knows, and a name of LiteLLM's own map.
3. A name without the date that the map has it under (`claude-3-opus`): its `-latest`, else its newest date.
4. A name that begins as all of a provider's do (`claude-`, `gpt-`): the map is older than some models and younger than
   others. The provider says whether it has it.
5. Unknown; so is what cannot be a model's name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from backends.litellm.upgrades import CHANGED, tell
from models.card import Capability, ModelCard, RemoteSource
from models.catalogue import Catalogue
from models.errors import UnknownModel

MAX_KNOWN: Final = 4096
"""Names remembered. Clients choose them, so the table is emptied when it is full."""
_NAME: Final = re.compile(r"[A-Za-z0-9@](?:[A-Za-z0-9_:@+-]|\.(?!\.)|/(?![./]))*")
"""What a client may call a model. LiteLLM puts names into addresses, takes a URL for the address itself, and some
providers' keys would go there. A card may say anything."""
_DATE: Final = r"-(\d{8}|\d{4}-\d{2}-\d{2}|\d{4})"
_FAMILIES: Final[Mapping[str, str]] = {
    "chatgpt-": "openai",
    "claude-": "anthropic",
    "command-": "cohere_chat",
    "deepseek-": "deepseek",
    "gemini-": "gemini",
    "gpt-": "openai",
    "grok-": "xai",
    "mistral-": "mistral",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
}
_CHAT_MODES: Final = frozenset({"chat", "responses"})


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """One model of one provider."""

    provider: str
    model: str
    """Its name at the provider, without the provider's prefix."""
    supported: frozenset[str]
    """OpenAI's parameters that it takes, by LiteLLM's tables."""
    mode: str
    """`chat`, `completion`, `responses`, `embedding`, …; `chat` where nothing is known."""
    context_length: int | None = None
    max_output_tokens: int | None = None
    is_known: bool = True
    """LiteLLM's map has it; otherwise everything here is a guess from its provider."""
    price: tuple[float, float] | None = None
    """The card's: US dollars for a token of the prompt and of the answer."""
    prefills: bool = False
    """It continues a trailing message of the assistant."""
    unsendable: set[str] = field(default_factory=set)
    """Parameters that the provider refused when only a default had asked for them. Learned."""

    @property
    def does_chat(self) -> bool:
        return self.mode in _CHAT_MODES or self.does_text

    @property
    def does_text(self) -> bool:
        return self.mode == "completion" or self.provider.startswith("text-completion-")

    @property
    def label(self) -> str:
        return f"{self.provider}/{self.model}"


class Deployments:
    """The deployments of this process, by the name a request carries."""

    def __init__(self, sdk: Any, catalogue: Catalogue) -> None:
        self._sdk = sdk
        self._catalogue = catalogue
        self._known: dict[str, Deployment] = {}

    def resolve(self, name: str) -> Deployment:
        """Raises: UnknownModel."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            card = self._card(name)
            source = card.sources.get("litellm") if card is not None else None
            remote = source.name if isinstance(source, RemoteSource) else _checked(name)
            found = self._known[name] = self._look_up(remote, card, asked=name)
        return found

    def _card(self, name: str) -> ModelCard | None:
        try:
            return self._catalogue.resolve(name)
        except UnknownModel:
            return None

    def _look_up(self, name: str, card: ModelCard | None, *, asked: str) -> Deployment:
        try:
            model, provider = self._provider_of(name)
        except Exception:
            model, provider = self._guess(name, asked)
        info = self._info(model, provider)
        length = card.context_length if card is not None else None
        return Deployment(
            provider=provider,
            model=model,
            supported=frozenset(self._supported(model, provider)),
            mode=str(info.get("mode") or "chat"),
            context_length=length or count_of(info.get("max_input_tokens") or info.get("max_tokens")),
            max_output_tokens=count_of(info.get("max_output_tokens")),
            is_known=bool(info),
            price=(card.price.prompt / 1e6, card.price.completion / 1e6) if card and card.price else None,
            prefills=bool(info.get("supports_assistant_prefill")),
        )

    def _guess(self, name: str, asked: str) -> tuple[str, str]:
        dated = newest_dated(name, self._sdk.model_cost)
        if dated is not None:
            return self._provider_of(dated)
        for start, provider in _FAMILIES.items():
            if name.startswith(start):
                return name, provider
        raise UnknownModel(asked, self._near(name))

    def _provider_of(self, name: str) -> tuple[str, str]:
        model, provider, *_ = self._sdk.get_llm_provider(name)
        return str(model), str(provider)

    def _info(self, model: str, provider: str) -> Mapping[str, Any]:
        try:
            # The public `get_model_info` asks the hub, or a server on this machine, about what the map does not have.
            info = self._sdk.utils.get_model_info_helper(
                model=model, custom_llm_provider=provider, catalog_only=True
            )
        except Exception as error:
            if isinstance(error, CHANGED):
                tell("context lengths, prices and capabilities of its map are not known", error)
            return {}
        return dict(info)

    def _supported(self, model: str, provider: str) -> Iterable[str]:
        try:
            return self._sdk.get_supported_openai_params(model=model, custom_llm_provider=provider) or ()
        except Exception as error:
            if isinstance(error, CHANGED):
                tell("which parameters a model takes is not known", error)
            return ()

    def _near(self, name: str) -> list[str]:
        return difflib.get_close_matches(name, [card.id for card in self._catalogue.cards("litellm")], n=3)


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise UnknownModel(name)
    return name


def newest_dated(name: str, names: Iterable[str]) -> str | None:
    """`name-latest` of `names`, else its newest dated form, else None."""
    pattern = re.compile(re.escape(name) + _DATE)
    dated: list[str] = []
    for candidate in names:
        if candidate == f"{name}-latest":
            return candidate
        if pattern.fullmatch(candidate):
            dated.append(candidate)
    return max(dated, key=lambda one: one.replace("-", ""), default=None)


def capabilities_of(info: Mapping[str, Any]) -> tuple[Capability, ...]:
    """What an entry of LiteLLM's map can be asked for; empty for what is no language model (images, audio)."""
    mode = info.get("mode")
    if mode == "embedding":
        return ("embeddings",)
    if mode == "rerank":
        return ("rerank",)
    if mode == "completion":
        return ("completion",)
    if mode not in _CHAT_MODES:
        return ()
    found: list[Capability] = ["chat"]
    if info.get("supports_vision"):
        found.append("vision")
    if info.get("supports_function_calling"):
        found.append("tools")
    if info.get("supports_reasoning"):
        found.append("reasoning")
    return tuple(found)


def count_of(value: object) -> int | None:
    """A number of tokens of the map. Some entries of the map hold text where a number belongs."""
    return int(value) if isinstance(value, int | float) and value >= 1 else None
