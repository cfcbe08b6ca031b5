"""The environment as `Settings`, or everything that is wrong with it at once."""

from __future__ import annotations

import difflib
import functools
import ipaddress
import logging
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from settings.arguments import Args
from settings.errors import SettingsError
from settings.knob import words
from settings.overrides import ARGS_PREFIX
from settings.variables import PREFIX, Settings

_log = logging.getLogger(__name__)

# What Kubernetes puts into every container for a service whose name begins with "llm", and Docker for a link.
_INJECTED: Final = re.compile(
    r"LLM_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)


def load_settings(args: Args | None = None) -> Settings:
    """Read the environment. With `args`, the knobs that stand in both trees have their final value in the
    result: `queue_size`, `max_concurrent_completions` and `llamacpp_url`.

    Raises: SettingsError with everything that is wrong. `LLM_DEFAULT_BACKEND` may be missing here; see
    `Settings.require_default_backend`.
    """
    problems: list[str] = []
    try:
        settings = Settings()
    except ValidationError as error:
        raise SettingsError(
            *_variable_problems(error), *_unknown_variables(os.environ, strict=_asks_for_strictness())
        ) from None
    problems += _unknown_variables(os.environ, strict=settings.strict_env)
    if args is not None:
        shared = {
            "queue_size": args.gateway.queue_size,
            "max_concurrent_completions": args.gateway.max_concurrency,
            "llamacpp_url": args.llamacpp.url,
        }
        settings = settings.model_copy(update=shared)
        problems += _too_short(settings, args)
    problems += _misfits(settings)
    if problems:
        raise SettingsError(*problems)
    return settings


def environment() -> MutableMapping[str, str]:
    """The process's own environment, for the one library that reads it by itself: LiteLLM finds its providers' keys and
    addresses there."""
    return os.environ


@functools.cache
def is_in_container() -> bool:
    """Whether BentoML's image runs us; there the port is published on purpose. Looked up once: the variable is taken
    away afterwards (supervision.py)."""
    return "BENTOML_CONTAINERIZED" in os.environ


def _misfits(settings: Settings) -> Iterator[str]:
    for folder in settings.model_dirs:
        if not folder.is_dir():
            yield f"LLM_MODEL_DIRS names {str(folder)!r}, which is no folder; create it or correct the name"
    files = {
        "LLM_CATALOGUE": settings.catalogue,
        "LLM_API_TOKENS_FILE": settings.api_tokens_file,
        "LLM_PRINCIPALS_FILE": settings.principals_file,
    }
    for name, file in files.items():
        if file is not None and not (file.is_file() and os.access(file, os.R_OK)):
            yield f"{name} is {str(file)!r}; allowed: a readable file"
    if settings.runner_token is None and settings.llamacpp_url and not _is_local(settings.llamacpp_url):
        yield f"LLM_RUNNER_TOKEN is not set; the runner at {settings.llamacpp_url}, on the network, needs one"


def _too_short(settings: Settings, args: Args) -> Iterator[str]:
    """The backstop must not act before the deadline that it is there for."""
    for name in ("gateway", *settings.backends_to_serve(args)):
        timeout: float = getattr(args, name).timeout
        if timeout <= settings.request_timeout_s:
            yield (
                f"{name}.timeout is {timeout:g}; allowed: more than LLM_REQUEST_TIMEOUT_S, "
                f"which is {settings.request_timeout_s:g}"
            )


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "file" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _asks_for_strictness() -> bool:
    return os.environ.get("LLM_STRICT_ENV", "").strip().lower() in ("1", "true", "yes", "on")


def _unknown_variables(environment: Mapping[str, str], *, strict: bool) -> list[str]:
    """Problems if `strict`, else warnings."""
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    sentences = []
    for name in sorted(environment):
        if (
            not name.startswith(PREFIX)
            or name in known
            or name.startswith(ARGS_PREFIX)
            or _INJECTED.fullmatch(name)
        ):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        hint = f"; did you mean {near[0]}?" if near else ""
        sentences.append(f"{name} is not a setting of this service{hint}")
    if strict:
        return sentences
    for sentence in sentences:
        _log.warning("%s", sentence)
    return []


def _variable_problems(error: ValidationError) -> list[str]:
    problems = []
    for name in dict.fromkeys(str(problem["loc"][0]) for problem in error.errors()):
        field = Settings.model_fields[name]
        variable = PREFIX + name.upper()
        value = os.environ.get(variable, "")
        shown = "****" if "Secret" in str(field.annotation) or "@" in value else repr(value[:200])
        problems.append(f"{variable} is {shown}; allowed: {words(field, 'allowed')}")
    return problems
