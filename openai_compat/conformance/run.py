"""The command: finds out what server it is, tries the checks, says how it went."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import httpx

from openai_compat.conformance.api import Api
from openai_compat.conformance.cases import all_checks, left_out
from openai_compat.conformance.check import Level
from openai_compat.conformance.outcome import text_table
from openai_compat.conformance.runner import documents, not_tried, try_all
from openai_compat.conformance.subject import Subject

PASSED, FAILED, UNUSABLE = 0, 1, 2
"""Exit codes; the last for a server that cannot be tried."""
NOT_PROMISED: Final = "only this service promises it"


def run(
    *,
    base_url: str,
    model: str,
    api_key: str | None,
    extensions: bool | None,
    as_json: bool,
    only: str | None = None,
) -> int:
    """The exit code. `extensions`: whether to try what only this service promises; None: if the server is one.
    `only`: the behaviours whose names hold this."""
    if not __debug__:
        return _unusable("the checks are assertions, which python -O leaves out: run it without -O")
    base_url = base_url.rstrip("/").removesuffix("/v1")
    if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).hostname:
        return _unusable(f"{base_url!r} is no address: http://HOST:PORT or https://HOST, with or without /v1")
    subject = Subject(base_url, model, api_key)
    try:
        try:
            is_this_service = _is_this_service(subject.service)
        except httpx.HTTPError as error:
            return _unusable(f"{base_url} cannot be reached: {error}")
        for group, package in left_out().items():
            _say(f"{group} is left out: the package {package} is not installed here")
        checks = [check for check in all_checks() if only is None or only in check.function.__name__]
        if not checks:
            return _unusable(f"no behaviour's name holds {only!r}")
        started = datetime.now(UTC)
        with_extensions = is_this_service if extensions is None else extensions
        promised: list[Level] = ["openai", "extension"] if is_this_service else ["openai"]
        tried = [check for check in checks if with_extensions or check.level == "openai"]
        outcomes = try_all(tried, subject, promised=promised, report=_say)
        outcomes += not_tried([check for check in checks if check not in tried], NOT_PROMISED)
    finally:
        subject.close()
    behaviours = documents(outcomes)
    if as_json:
        about = {
            "model": model,
            "started": started.isoformat(timespec="seconds"),
            "is_this_service": is_this_service,
        }
        print(json.dumps(about | {"behaviours": behaviours}, indent=1, ensure_ascii=False))
    else:
        print(text_table(behaviours))
    return FAILED if any(outcome.result == "failed" for outcome in outcomes) else PASSED


def _is_this_service(api: Api) -> bool:
    """Raises: httpx.HTTPError where nobody answers."""
    api.http.get("/v1/models")
    backends = api.http.get("/v1/backends")
    if backends.status_code != httpx.codes.OK:
        return False
    try:
        return "backends" in backends.json()
    except ValueError:
        return False


def _unusable(why: str) -> int:
    _say(why)
    return UNUSABLE


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
