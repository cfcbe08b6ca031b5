"""llama-cpp-python's own server (`python -m llama_cpp.server`), on the same file of weights and the same compiled
llama.cpp as the service.

It has one sequence and answers one request at a time: who comes meanwhile waits. That is what it is, so it runs like
that here. Its settings are those that its documentation has for speed: no logits but the last ones, no debug output,
and no prompt cache, since no prompt comes twice. One default has to go: a new request cuts off the one that is being
answered (`interrupt_requests`), which would leave half an answer of each when several clients ask.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

import aiohttp

from bench.client import MODEL
from bench.llama_server import find_gguf
from bench.load import Body
from bench.measurement import PeerMissing, Setup
from bench.ours import ROOT
from bench.peer import Peer
from bench.processes import Server, ServerFailed, free_port

NAME = "llama_cpp.server"
PYTHON = ROOT / ".venv-llama-cpp-server" / "bin" / "python"
NEVER = -100.0
"""The bias that OpenAI's API has for a token that must not come."""
_ENDS = """
import json, sys, importlib.metadata, llama_cpp
vocabulary = llama_cpp.Llama(sys.argv[1], vocab_only=True, verbose=False)
pointer = llama_cpp.llama_model_get_vocab(vocabulary.model)
ends = [token for token in range(vocabulary.n_vocab()) if llama_cpp.llama_vocab_is_eog(pointer, token)]
print(json.dumps({"ends": ends, "version": importlib.metadata.version("llama_cpp_python")}))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", type=Path, default=PYTHON, help=f"the one that has {NAME}")


def peer(options: argparse.Namespace, setup: Setup) -> Peer:
    """Raises: PeerMissing saying what to do when it is not installed."""
    python: Path = options.python
    if not python.is_file():
        raise PeerMissing(f"{NAME} is not installed: run `make bench-setup`, or name a Python with --python")
    gguf = find_gguf()
    ends, version = _asked(python, gguf)
    port = free_port()
    flags = {
        "n_ctx": options.ctx_per_slot,
        "n_threads": options.threads,
        "n_threads_batch": options.threads,
        "logits_all": "false",
        "interrupt_requests": "false",
        "verbose": "false",
    }
    told = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    where = ["--model", str(gguf), "--model_alias", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    bias = {str(token): NEVER for token in ends}

    def without_end(body: Body) -> Body:
        """It does not know `ignore_eos`; a bias on each token that ends a text is the same."""
        kept = {name: value for name, value in body.items() if name != "ignore_eos"}
        return {**kept, "logit_bias": bias, "logit_bias_type": "input_ids"} if "ignore_eos" in body else kept

    return Peer(
        name=NAME,
        server=Server(
            NAME,
            [str(python), "-m", "llama_cpp.server", *where, *told],
            port=port,
            environment=os.environ,
            folder=setup.out,
            log=setup.out / "logs" / "llama_cpp.server.log",
            priority=setup.priority,
        ),
        ready="/v1/models",
        count_tokens=count_tokens,
        body=without_end,
        settings=" ".join(told),
        versions={"llama_cpp.server": version},
    )


def _asked(python: Path, gguf: Path) -> tuple[list[int], str]:
    """The tokens that end a text, and the package's version. Raises: PeerMissing when it cannot be imported."""
    done = subprocess.run(
        [str(python), "-c", _ENDS, str(gguf)], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise PeerMissing(f"{NAME} cannot be imported by {python.name}: {done.stderr.strip()[-300:]}")
    told = json.loads(done.stdout)
    return told["ends"], told["version"]


async def count_tokens(session: aiohttp.ClientSession, server: Server, text: str) -> int:
    """How many tokens the model's vocabulary makes of `text`. Raises: ServerFailed when it does not answer."""
    async with session.post(f"{server.url}/extras/tokenize/count", json={"input": text}) as response:
        if response.status != 200:
            raise ServerFailed(f"{server.name} cannot tokenise: status {response.status}")
        return int((await response.json())["count"])
