"""Runs the behaviours and says how it went."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from openai_compat.conformance.outcome import text_table

ROOT: Final = Path(__file__).parents[2]
CASES: Final = ROOT / "tests" / "conformance"
NEEDED: Final = ("pytest", "pytest_asyncio", "pytest_timeout", "httpx", "openai")
PROBE_TIMEOUT_S: Final = 30
PASSED, FAILED, UNUSABLE = 0, 1, 2
"""Exit codes; the last for a server that cannot be reached and a machine that cannot run the checks."""


def run(*, base_url: str, model: str, api_key: str | None, extensions: bool | None, as_json: bool) -> int:
    """The exit code. `extensions`: whether to try what only this service promises; None: if the server is one."""
    if not CASES.is_dir():
        sys.stderr.write("the behaviours are in tests/conformance of a checkout, and there is none here\n")
        return UNUSABLE
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"the checks need {', '.join(missing)}: install requirements/dev.txt\n")
        return UNUSABLE
    base_url = base_url.rstrip("/").removesuffix("/v1")
    status, body = _get(f"{base_url}/v1/models", api_key)
    if status is None:
        sys.stderr.write(f"{base_url} cannot be reached: {body}\n")
        return UNUSABLE
    if extensions is None:
        extensions = '"backends"' in _get(f"{base_url}/v1/backends", api_key)[1]
    outcomes = _outcomes(base_url, model, api_key, extensions=extensions)
    if outcomes is None:
        return UNUSABLE
    if as_json:
        print(json.dumps({"model": model, "behaviours": outcomes}, indent=1))
    else:
        print(text_table(outcomes))
    return FAILED if any(outcome["result"] == "failed" for outcome in outcomes) else PASSED


def _outcomes(
    base_url: str, model: str, api_key: str | None, *, extensions: bool
) -> list[dict[str, Any]] | None:
    """In a process of its own, with its progress on standard error. None: the checks could not be run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "--no-header", "-p", "no:cacheprovider"]
        command += ["-p", "openai_compat.conformance.recorder", f"--outcomes-to={file}"]
        command += [str(CASES), f"--rootdir={ROOT}", f"--base-url={base_url}", f"--model={model}"]
        if api_key:
            # Not as an argument: everybody on the machine may read those.
            token = Path(folder) / "token"
            token.touch(mode=0o600)
            token.write_text(api_key)
            command.append(f"--token-file={token}")
        command += [] if extensions else ["-m", "not ours"]
        done = subprocess.run(  # noqa: S603  the interpreter that runs this
            command,
            cwd=ROOT,  # where `-m` then looks for modules first
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            check=False,
        )
        if done.returncode not in (PASSED, FAILED) or not file.is_file():
            return None
        outcomes: list[dict[str, Any]] = json.loads(file.read_text())
        return outcomes


def _get(url: str, api_key: str | None) -> tuple[int | None, str]:
    """Status and text; no status where nobody answers."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        request = Request(url, headers=headers)  # noqa: S310  the address is the caller's own
        with build_opener(ProxyHandler({})).open(request, timeout=PROBE_TIMEOUT_S) as response:
            return response.status, response.read().decode("utf-8", "replace")
    except HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")
    except (URLError, OSError, ValueError) as error:
        return None, str(error)
