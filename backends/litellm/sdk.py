"""LiteLLM, imported once per process and told to keep to itself: no network of its own, no log of prompts or keys."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import MutableMapping
from functools import cache
from typing import Any, Final

from backends.litellm import no_fetch

_BEFORE_IMPORT: Final = {
    # Price map, beta headers and other lists come with the package; it would fetch newer ones, three tries each.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_OFFLINE_MODE": "true",
    # Otherwise it reads a .env file of the current folder or one above it into our environment.
    "LITELLM_MODE": "PRODUCTION",
    # Its default is to log at DEBUG.
    "LITELLM_LOG": "CRITICAL",
    # Its native road opens connections that are not ours to close.
    "LITELLM_RUST": "False",
    **no_fetch.NO_DOWNLOADS,
}
_LOGGERS: Final = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
_CHATTY: Final = ("httpx", "httpx2", "httpcore", "openai", "anthropic")
"""They log addresses of requests at INFO, and some providers' addresses hold the key."""


@cache
def _imported() -> Any:
    return importlib.import_module("litellm")


def load(environ: MutableMapping[str, str]) -> Any:
    """The module `litellm`. The first call takes 3-6 s. `environ`: the process's own environment, where LiteLLM looks
    for keys, addresses and what it may do; the last is set here.

    Raises: ModuleNotFoundError where it is not installed.
    """
    environ.update(_BEFORE_IMPORT)
    litellm = _imported()
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        logger.setLevel(logging.CRITICAL)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    litellm.suppress_debug_info = True
    litellm.set_verbose = False
    litellm.telemetry = False
    litellm.turn_off_message_logging = True
    litellm.disable_streaming_logging = True
    # Parameters are judged here; what it would drop in silence has to be an error.
    litellm.drop_params = False
    litellm.modify_params = False
    litellm.num_retries = None
    # Its embeddings take a call's `max_retries=0` for unset.
    litellm.DEFAULT_MAX_RETRIES = 0
    # It takes a hundred equal chunks in a row for a fault; they may be what was asked for.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
    # It would ask the hub for a tokenizer, in the middle of the event loop, to count tokens.
    litellm.disable_hf_tokenizer_download = True
    no_fetch.forbid(litellm)
    return litellm


def internal_calls() -> Any:
    """The context variable that keeps LiteLLM's books shut for the calls of a task: no payload for its loggers is built
    (a tenth of a call's time), no failure handler runs."""
    return importlib.import_module("litellm._internal_context").is_internal_call
