"""What is checked once, before anything is started, and what all processes of one instance share.

Only the process that is about to serve checks: a build, a worker or a test's import starts nothing.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import ipaddress
import os
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final

from models.card import BackendKind
from openai_compat.principals import parse_principals
from openai_compat.reserve import reserve
from settings import Args, Settings, SettingsError

INSTANCE_VARIABLE: Final = "INFERENCE_INSTANCE_DIR"
"""For our own processes; no setting."""
MAX_OPEN_FILES: Final = 65_536
INSTANCE_BYTES: Final = 4 << 20
"""The table of the rate limit takes half a megabyte, and each worker's first metrics a quarter."""
_PACKAGE_OF = {"llamacpp": "llama_cpp", "litellm": "litellm", "vllm": "vllm"}


def check_can_serve(
    settings: Settings, args: Args, kinds: Sequence[BackendKind], available: Collection[BackendKind]
) -> None:
    """Raises: SettingsError with one sentence that says what to do: no default backend, a backend that this version
    has not got, an engine that is not installed."""
    settings.require_default_backend()
    for kind in kinds:
        if kind not in available:
            names = ", ".join(available)
            raise SettingsError(f"the backend {kind!r} is not part of this version; available are {names}")
        package = _PACKAGE_OF.get(kind)
        is_elsewhere = args.section(kind).url or (kind == "vllm" and settings.vllm_base_url)
        if package is None or is_elsewhere:
            continue
        if kind == "vllm" and args.vllm.python is not None:
            check_interpreter(args.vllm.python, package)
        elif importlib.util.find_spec(package) is None:
            elsewhere = ", or name an interpreter that has it: vllm.python" if kind == "vllm" else ""
            raise SettingsError(
                f"the backend {kind!r} needs the package {package!r}; install requirements/{kind}.txt{elsewhere}"
            )


def check_callers(settings: Settings) -> None:
    """Raises: SettingsError when the principals file cannot be used, or spending is to be bounded and there is no place
    to keep what was spent."""
    named = False
    if settings.principals_file is not None:
        try:
            principals = parse_principals(settings.principals_file.read_bytes()).values()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise SettingsError(
                f"LLM_PRINCIPALS_FILE is {str(settings.principals_file)!r}, which cannot be used: {why}"
            ) from None
        named = any(principal.budget_usd_per_day is not None for principal in principals)
    if (settings.budgets or named) and settings.redis_url is None:
        folder = settings.state_folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise SettingsError(
                f"budgets need a place for what was spent, and the folder {str(folder)!r} cannot be written "
                f"({error.strerror}); set LLM_STATE_DIR or LLM_REDIS_URL"
            ) from None


def check_interpreter(python: str, package: str) -> None:
    """Raises: SettingsError when `python` is no interpreter that has the package."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        status = subprocess.run([python, "-c", code], stdin=subprocess.DEVNULL, timeout=20, check=False)  # noqa: S603 - the operator names it
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else "it does not answer"
        raise SettingsError(f"vllm.python is {python!r}, which cannot be run ({why})") from None
    if status.returncode != 0:
        raise SettingsError(f"vllm.python is {python!r}, which has not got the package {package!r}")


def check_runner_is_guarded(settings: Settings, bento: str, host: str) -> None:
    """Raises: SettingsError when a runner (`bentoml serve service:LlamaCppRunner`) would listen to other machines
    without a token: it would run anything for anybody."""
    is_runner = bento.rpartition(":")[2].endswith("Runner")
    if is_runner and settings.runner_token is None and not is_loopback(host):
        raise SettingsError(
            f"a runner that listens on {host} needs LLM_RUNNER_TOKEN; set it, or use --host 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_port_is_free(host: str, port: int) -> None:
    """Raises: SettingsError when something listens on the address, or it is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SettingsError(
                f"port {port} on {host} cannot be used ({error.strerror}); choose another with --port"
            ) from error


def instance_dir(supervisor_pid: int, environment: Mapping[str, str]) -> Path:
    """The folder that all processes below one supervisor share: limits and counters of the workers.

    A worker that replaces another is told where it is: where the place for temporary files is full by then, it would
    look for it elsewhere, and keep limits of its own.
    """
    name = f"llm-inference-{os.getuid()}-{supervisor_pid}"
    told = Path(environment.get(INSTANCE_VARIABLE, ""))
    return told if told.name == name else Path(tempfile.gettempdir()) / name


def make_instance_dir(supervisor_pid: int, environment: MutableMapping[str, str]) -> Path:
    """The same, made anew, and told to the processes that inherit `environment`: whatever a dead process with this id
    left is removed. Only its owner may enter.

    Raises: SettingsError when somebody else owns that name, or the disk has no room for what the workers will map.
    """
    path = instance_dir(supervisor_pid, environment)
    shutil.rmtree(path, ignore_errors=True)
    try:
        path.mkdir(mode=0o700)
        with tempfile.TemporaryFile(dir=path) as probe:
            reserve(probe.fileno(), INSTANCE_BYTES)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise SettingsError(
            f"the folder {path} cannot be made or filled ({error.strerror}); TMPDIR may name another place"
        ) from error
    environment[INSTANCE_VARIABLE] = str(path)
    return path


def allow_open_files() -> None:
    """Let this process and those it starts have as many connections as the system allows them: beyond the soft limit,
    often 1024, new ones are closed at once and nothing says why."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit that it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
