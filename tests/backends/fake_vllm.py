"""A stand-in for vLLM's server, for tests of what supervises it: a package of the same name in a temporary folder, and
an interpreter that finds it. It starts in some 0.2 s, has a process of its own called `VLLM::EngineCore`, and behaves
as `--fake-…` arguments say.

    --fake-log=TEXT        print TEXT (with \\n, \\r as written) before anything else
    --fake-exit=STATUS     end with that status after the log
    --fake-hang            never listen
    --fake-deaf            ignore SIGTERM
    --fake-answers=N       a completion has N chunks (default 3), 20 ms apart
"""

from __future__ import annotations

import sys
from pathlib import Path

SERVER = '''
import argparse, asyncio, json, multiprocessing, os, signal, sys, time

parser = argparse.ArgumentParser()
for name in ("model", "uds", "served-model-name", "fake-log", "max-model-len"):
    parser.add_argument("--" + name, default="")
parser.add_argument("--fake-exit", type=int)
parser.add_argument("--fake-answers", type=int, default=3)
for name in ("fake-hang", "fake-deaf"):
    parser.add_argument("--" + name, action="store_true")


def core(title, ready):
    libc_title(title)
    ready.send(True)
    while True:
        time.sleep(60)


def libc_title(title):
    """Over the memory of argv, as setproctitle does it."""
    import ctypes
    pr_set_mm, arg_start, arg_end = 35, 8, 9
    fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
    start, end = int(fields[45]), int(fields[46])
    text = title.encode().ljust(end - start - 1, b"\\0")[: end - start - 1] + b"\\0"
    ctypes.memmove(start, text, len(text))


async def answer(reader, writer, options):
    while head := await reader.readuntil(b"\\r\\n\\r\\n"):
        method, path, _ = head.split(b" ", 2)
        size = 0
        for line in head.lower().split(b"\\r\\n"):
            if line.startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        await reader.readexactly(size)
        if path == b"/v1/completions":
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\nconnection: close\\r\\n\\r\\n")
            for number in range(options.fake_answers):
                choice = {"index": 0, "text": f" t{number}", "finish_reason": None}
                writer.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\\n\\n")
                await writer.drain()
                await asyncio.sleep(0.02)
            last = {"index": 0, "text": "", "finish_reason": "stop"}
            usage = {"prompt_tokens": 3, "completion_tokens": options.fake_answers, "total_tokens": 0}
            writer.write(b"data: " + json.dumps({"choices": [last], "usage": usage}).encode() + b"\\n\\n")
            writer.write(b"data: [DONE]\\n\\n")
            await writer.drain()
            writer.close()
            return
        body = b""
        if path == b"/v1/models":
            length = int(options.max_model_len or 2048)
            model = {"id": options.served_model_name, "owned_by": "vllm", "max_model_len": length}
            body = json.dumps({"object": "list", "data": [model]}).encode()
        elif path == b"/metrics":
            body = b"# HELP vllm:x X.\\n# TYPE vllm:x gauge\\nvllm:x 1.0\\n# TYPE python_info gauge\\npython_info 1\\n"
        elif path == b"/tokenize":
            body = b'{"count": 3, "tokens": [1, 2, 3]}'
        head = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n"
        writer.write(head % len(body) + body)
        await writer.drain()


async def serve(options):
    async def on_connection(reader, writer):
        try:
            await answer(reader, writer, options)
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    await asyncio.start_unix_server(on_connection, options.uds)
    stop = asyncio.Event()
    on_signal = (lambda: None) if options.fake_deaf else stop.set
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_signal)
    await stop.wait()


if __name__ == "__main__":
    options, unknown = parser.parse_known_args()
    print("arguments: " + json.dumps(sys.argv[1:]), flush=True)
    print("environment: " + json.dumps(sorted(os.environ)), flush=True)
    if options.fake_log:
        log = options.fake_log.encode().replace(b"\\\\n", b"\\n").replace(b"\\\\r", b"\\r")
        os.write(2, log + b"\\n")
    if options.fake_exit is not None:
        sys.exit(options.fake_exit)
    spawning = multiprocessing.get_context("spawn")
    reader, writer = spawning.Pipe(duplex=False)
    engine = spawning.Process(target=core, args=("VLLM::EngineCore", writer), daemon=True)
    engine.start()
    reader.recv()
    if options.fake_hang:
        time.sleep(600)
    asyncio.run(serve(options))
    engine.terminate()
    print("bye", flush=True)
'''


def make_python(folder: Path) -> str:
    """An interpreter with the fake package, in `folder`."""
    package = folder / "site" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for part in (package, package.parent, package.parent.parent):
        (part / "__init__.py").touch()
    (package / "api_server.py").write_text(SERVER)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder / "site"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def make_weights(folder: Path, *, vocab_size: int = 100, **more: object) -> Path:
    """A folder as of a small llama, whose weights are zeros."""
    import json

    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab_size,
        "max_position_embeddings": 2048,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        **more,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(1000))
    return folder
