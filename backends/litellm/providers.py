"""Which providers this process has a key for. Keys come from the environment alone, under LiteLLM's own names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

_STEMS: Final[Mapping[str, str]] = {"ollama_chat": "OLLAMA", "text-completion-openai": "OPENAI"}
_HAVE_BASE_URL: Final = frozenset({"ANTHROPIC", "COMETAPI", "NACE", "OPENAI"})
"""Whose address LiteLLM also reads from `…_BASE_URL`. A test looks for others in LiteLLM's source."""
USUAL_KEYS: Final = ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")

_OTHER_KEYS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "anthropic": (("ANTHROPIC_AUTH_TOKEN",),),
    "azure": (("AZURE_API_KEY", "AZURE_API_BASE"),),
    "bedrock": (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_PROFILE",),
        ("AWS_ROLE_ARN",),
        ("AWS_WEB_IDENTITY_TOKEN_FILE",),
        ("AWS_BEARER_TOKEN_BEDROCK",),
    ),
    "cloudflare": (("CLOUDFLARE_API_KEY", "CLOUDFLARE_ACCOUNT_ID"),),
    "databricks": (("DATABRICKS_API_KEY", "DATABRICKS_API_BASE"),),
    "datarobot": (("DATAROBOT_API_TOKEN",),),
    "fireworks_ai": (("FIREWORKS_API_KEY",), ("FIREWORKSAI_API_KEY",), ("FIREWORKS_AI_TOKEN",)),
    "gemini": (("GOOGLE_API_KEY",),),
    "github": (("GITHUB_API_KEY",),),
    "huggingface": (("HF_TOKEN",),),
    "openrouter": (("OR_API_KEY",),),
    "perplexity": (("PERPLEXITYAI_API_KEY",),),
    "replicate": (("REPLICATE_API_TOKEN",),),
    "vertex_ai": (("VERTEXAI_PROJECT", "VERTEXAI_LOCATION"), ("VERTEX_PROJECT", "VERTEX_LOCATION")),
    "watsonx": (("WATSONX_APIKEY",), ("WX_API_KEY",)),
}
"""Provider -> sets of variables of which one set is enough, beside `<PROVIDER>_API_KEY`."""

_NO_KEY_NEEDED: Final = frozenset(
    {
        "custom_openai",
        "docker_model_runner",
        "hosted_vllm",
        "lemonade",
        "llamafile",
        "lm_studio",
        "ollama",
        "ollama_chat",
        "openai_like",
        "oobabooga",
        "petals",
        "triton",
        "vllm",
        "xinference",
    }
)
"""Servers of one's own: an address is enough."""


def has_key(provider: str, environ: Mapping[str, str]) -> bool:
    """Whether calls to the provider can be made: a key is set, or an address of a server that needs none."""
    stem = _stem(provider)
    keys = [(f"{stem}_API_KEY",), (f"{stem.replace('_', '')}_API_KEY",), *_OTHER_KEYS.get(provider, ())]
    if any(all(environ.get(name, "").strip() for name in names) for names in keys):
        return True
    return provider in _NO_KEY_NEEDED and has_address(provider, environ)


def has_address(provider: str, environ: Mapping[str, str]) -> bool:
    """Whether the provider's address is set here, instead of its public one."""
    stem = _stem(provider)
    names = [f"{stem}_API_BASE", *([f"{stem}_BASE_URL"] if stem in _HAVE_BASE_URL else [])]
    return any(environ.get(name, "").strip() for name in names)


def unread(providers: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that look like addresses and are read by nobody, each with the one that is: without it the calls, and
    the key, go to the provider's public address."""
    stems = {_stem(provider) for provider in providers} - _HAVE_BASE_URL
    return {
        f"{stem}_BASE_URL": f"{stem}_API_BASE"
        for stem in sorted(stems)
        if environ.get(f"{stem}_BASE_URL", "").strip()
    }


def _stem(provider: str) -> str:
    """How the names of the provider's variables begin."""
    return _STEMS.get(provider) or provider.upper().replace("-", "_")


def configured(providers: Iterable[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Those of `providers` that have a key, in order."""
    return tuple(provider for provider in providers if has_key(provider, environ))


def secrets_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values that must never be shown, longest first."""
    words = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS")
    found = {
        value.strip()
        for name, value in environ.items()
        if len(value.strip()) >= 8 and any(word in name.upper() for word in words)
    }
    return tuple(sorted(found, key=len, reverse=True))
