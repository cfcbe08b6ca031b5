"""One servable model, as the operator describes it. A card is a value: it is never changed, only replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)
from typing_extensions import override

from models import names

BackendKind = Literal["llamacpp", "vllm", "litellm", "fake"]
BACKEND_KINDS: Final[tuple[BackendKind, ...]] = get_args(BackendKind)

Capability = Literal["chat", "completion", "embeddings", "rerank", "vision", "tools", "reasoning"]
"""What a model can be asked for. `vision`: image parts; `tools`: tool calls; `reasoning`: separate reasoning
text."""

FallbackReason = Literal["unavailable", "overloaded", "context_length"]
FALLBACK_REASONS: Final[tuple[FallbackReason, ...]] = get_args(FallbackReason)


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )


def _number(value: object) -> object:
    """YAML's `yes` is true, and true counts as 1 in Python; neither is meant where a number is asked for."""
    if isinstance(value, bool | str):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic turns only a ValueError into a problem
    return value


class FileSource(_Frozen):
    """A GGUF file (or, for vLLM, a folder of weights) on this machine."""

    path: str = Field(min_length=1, max_length=4096)
    """Relative to the model folders (the first that has it), or absolute. The first shard of a sharded
    model."""

    @field_validator("path")
    @classmethod
    def _stays_below(cls, path: str) -> str:
        if "\0" in path or ".." in path.split("/"):
            raise ValueError("must not contain '..'")
        return path


class PackageSource(_Frozen):
    """A file or folder inside an installed Python package. The package is located, never imported."""

    package: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Import name of a top-level package."""
    resource: str = Field(min_length=1, max_length=1024)
    """Path of the file, or of a folder of weights, inside the package."""
    version: str | None = None
    """The only version that is accepted; null accepts any."""

    @field_validator("resource")
    @classmethod
    def _stays_inside(cls, resource: str) -> str:
        if "\0" in resource or resource.startswith("/") or ".." in resource.split("/"):
            raise ValueError("must be a path inside the package, without '..'")
        return resource


class HubSource(_Frozen):
    """A repository on the Hugging Face hub, fetched into its cache once."""

    repo: str
    """`owner/name`."""
    file: str | None = None
    """One file of it (llama.cpp needs one: a GGUF or its first shard); null takes the whole repository."""
    revision: str | None = None
    """Branch, tag or commit; null takes the card's `revision`, else `main`. A commit never changes under
    you."""

    @field_validator("repo")
    @classmethod
    def _is_repo(cls, repo: str) -> str:
        split = names.split_hub_name(repo)
        if split is None or split[1] is not None:
            raise ValueError("must be 'owner/name'")
        return repo

    @field_validator("file")
    @classmethod
    def _is_inside(cls, file: str | None) -> str | None:
        if file is not None and (not names.is_safe(file) or file.startswith("/")):
            raise ValueError("must be a path inside the repository, without '..'")
        return file


class RemoteSource(_Frozen):
    """A model that somebody else serves; nothing is fetched."""

    name: str = Field(min_length=1, max_length=256)
    """Its name there: LiteLLM's `provider/model`, or the name a remote vLLM serves it under."""


def _kind_of_source(value: Any) -> str | None:
    """The one key that tells the forms apart, so that a mistake is reported against one form instead of
    four."""
    for tag, (key, form) in _SOURCE_FORMS.items():
        if isinstance(value, form) or (isinstance(value, Mapping) and key in value):
            return tag
    return None


_SOURCE_FORMS: Final[dict[str, tuple[str, type[_Frozen]]]] = {
    "file": ("path", FileSource),
    "package": ("package", PackageSource),
    "hub": ("repo", HubSource),
    "remote": ("name", RemoteSource),
}

Source = Annotated[
    Annotated[FileSource, Tag("file")]
    | Annotated[PackageSource, Tag("package")]
    | Annotated[HubSource, Tag("hub")]
    | Annotated[RemoteSource, Tag("remote")],
    Discriminator(
        _kind_of_source,
        custom_error_type="source_form",
        custom_error_message="needs one of the keys 'path', 'package', 'repo' or 'name'",
    ),
]
"""Where the weights of a model come from, told apart by their first key."""

_LOCAL: Final = (FileSource, PackageSource, HubSource)
_TAKES: Final[dict[BackendKind, tuple[type[_Frozen], ...]]] = {
    "llamacpp": _LOCAL,
    "vllm": (*_LOCAL, RemoteSource),
    "litellm": (RemoteSource,),
    "fake": (RemoteSource,),
}


_NUMBER: Final = BeforeValidator(_number)
_Name = Annotated[str, Field(min_length=1, max_length=names.MAX_NAME_CHARS)]


class SamplingDefaults(_Frozen):
    """What a request to this model gets where it says nothing. null leaves the service's own default."""

    temperature: Annotated[float, Field(ge=0, le=2), _NUMBER] | None = None
    """0-2; 0 is greedy."""
    top_p: Annotated[float, Field(ge=0, le=1), _NUMBER] | None = None
    """0-1; 1 keeps every token."""
    top_k: Annotated[int, Field(ge=0), _NUMBER] | None = None
    """Tokens to keep; 0 keeps all."""
    min_p: Annotated[float, Field(ge=0, le=1), _NUMBER] | None = None
    """0-1, relative to the best token; 0 keeps all."""
    typical_p: Annotated[float, Field(ge=0, le=1), _NUMBER] | None = None
    """0-1; 1 keeps all."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2), _NUMBER] | None = None
    """-2 to 2; 0 is off."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2), _NUMBER] | None = None
    """-2 to 2; 0 is off."""
    repetition_penalty: Annotated[float, Field(gt=0, le=10), _NUMBER] | None = None
    """Above 0; 1 is off."""
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000), _NUMBER] | None = None
    """Tokens per answer, 1-1,000,000; null runs to a stop or the context's end."""
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=16)] | None = None
    """Up to 16 non-empty strings that end an answer."""


class VLLMServing(_Frozen):
    """How vLLM serves the model where it runs here; nothing of it reaches a server elsewhere."""

    tool_call_parser: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = None
    """vLLM's parser of this model's tool calls (`hermes`, `llama3_json`, …); null: it calls none of its own choice."""
    reasoning_parser: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = None
    """vLLM's parser that tells this model's reasoning from its answer (`deepseek_r1`, `qwen3`, …)."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1), _NUMBER] | None = None
    """Of each GPU's memory, 0-1, what this model takes; null takes an equal part of what all models may."""
    extra_args: tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...] = ()
    """More of vLLM's own command-line arguments, one word each; they win over what the service sets."""


class ReasoningMarkers(_Frozen):
    """What stands around a model's reasoning in its text."""

    open: str = Field(min_length=1, max_length=64)
    """Where it begins, such as `<think>`."""
    close: str = Field(min_length=1, max_length=64)
    """Where it ends, such as `</think>`."""


class Price(_Frozen):
    """What a model that somebody else serves costs, in US dollars for a million tokens."""

    prompt: Annotated[float, Field(ge=0), _NUMBER]
    """Of the prompt."""
    completion: Annotated[float, Field(ge=0), _NUMBER]
    """Of the answer."""


def _backend_is_optional(schema: dict[str, Any]) -> None:
    schema["required"].remove("backend")


class ModelCard(_Frozen):
    """What is served under one id."""

    model_config = ConfigDict(json_schema_extra=_backend_is_optional)

    id: _Name
    """The name clients send. Slashes are allowed; `..`, backslashes, URLs and control characters are not."""
    aliases: tuple[_Name, ...] = ()
    """Other names for it. Answers and lists show the id."""
    sources: Mapping[BackendKind, Source] = Field(min_length=1)
    """Where each backend takes it from. llamacpp: a file, package or hub file; vllm: those, a hub repository
    or a remote name; litellm and fake: a remote name."""
    backend: BackendKind
    """Which of the sources serves a request that names no backend; by default the first."""
    revision: str | None = None
    """Branch, tag or commit on the hub for sources that give none of their own."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Checksum of the source's single file (lower-case hex); checked before the first load in a process."""
    context_length: Annotated[int, Field(ge=1, le=1 << 31), _NUMBER] | None = None
    """Tokens of prompt and answer together; null takes the file's own."""
    capabilities: tuple[Capability, ...] = ("chat", "completion")
    """What may be asked of it; when left out, read from the file where there is one."""
    sampling: SamplingDefaults = SamplingDefaults()
    """Defaults of requests to this model."""
    chat_template: Annotated[str, Field(min_length=1, max_length=1 << 20)] | None = None
    """Jinja source that replaces the model's own template; null keeps that."""
    reasoning_markers: ReasoningMarkers | None = None
    """What stands around its reasoning on llama.cpp; null reads that from the template."""
    vllm: VLLMServing = VLLMServing()
    """How vLLM serves it here."""
    autoload: bool = True
    """Load it when a request needs it; false leaves that to `POST /v1/models/load`."""
    preload: bool = False
    """Load it when the service starts; the backend counts as healthy only once it is loaded."""
    idle_ttl_s: Annotated[float, Field(gt=0), _NUMBER] | None = None
    """Seconds after the end of its last request before it is unloaded; null keeps it."""
    price: Price | None = None
    """What a cloud takes for it; null takes LiteLLM's own list. Shown in lists, and the cost of an answer."""
    max_price: Price | None = None
    """The most that a cloud may take for it: above, or where the price is not known, it counts as unavailable. null is
    no limit."""
    fallbacks: Annotated[tuple[_Name, ...], Field(max_length=8)] = ()
    """Up to 8 models, by id or alias, that serve a request this one cannot, in this order. Theirs are not followed."""
    when: Annotated[tuple[FallbackReason, ...], Field(min_length=1)] = FALLBACK_REASONS
    """What lets a request go on to them: the model is down or too slow, takes no more, or has too small a context."""
    created: Annotated[int, Field(ge=0), _NUMBER] = 0
    """Unix seconds shown in lists."""
    owned_by: str = Field(default="llm-inference", min_length=1, max_length=128)
    """Owner shown in lists."""

    @override
    def __hash__(self) -> int:
        """By id, since a mapping has no hash."""
        return hash(self.id)

    @property
    def backends(self) -> tuple[BackendKind, ...]:
        """The backends this model has a source for, in the card's order."""
        return tuple(self.sources)

    @model_validator(mode="before")
    @classmethod
    def _first_source_serves(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("backend") is None:
            sources = data.get("sources")
            if isinstance(sources, Mapping) and sources:
                return {**data, "backend": next(iter(sources))}
        return data

    @field_validator("id", "aliases", "fallbacks")
    @classmethod
    def _are_names(cls, value: Any) -> Any:
        for name in (value,) if isinstance(value, str) else value:
            if not names.is_safe(name) or name.startswith("/"):
                raise ValueError(f"{name[:64]!r} cannot be a model's name")
        return names.normalise(value) if isinstance(value, str) else tuple(map(names.normalise, value))

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.backend not in self.sources:
            raise ValueError(
                f"backend {self.backend!r} has no source; there is one for {', '.join(self.backends)}"
            )
        for kind, source in self.sources.items():
            if not isinstance(source, _TAKES[kind]):
                raise ValueError(f"sources.{kind} cannot be {_ARTICLE[type(source)]}")  # noqa: TRY004 - pydantic's
            if kind == "llamacpp" and isinstance(source, HubSource) and source.file is None:
                raise ValueError("sources.llamacpp needs 'file', the GGUF inside the repository")
        if self.preload and not self.autoload:
            raise ValueError("preload needs autoload")
        for name in self.fallbacks:
            if name in (self.id, *self.aliases):
                raise ValueError(f"fallbacks name the model itself, as {name!r}")
        if len(set(self.fallbacks)) < len(self.fallbacks):
            raise ValueError("fallbacks name a model twice")
        if "when" in self.model_fields_set and not self.fallbacks:
            raise ValueError("when needs fallbacks")
        return self


_ARTICLE: Final[dict[type[_Frozen], str]] = {
    FileSource: "a file",
    PackageSource: "a package's file",
    HubSource: "a hub repository",
    RemoteSource: "a remote name",
}
