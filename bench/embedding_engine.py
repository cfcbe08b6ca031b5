"""The embedding engine by itself: forward passes over texts, one by one and all at once, without HTTP and batching.

    python bench/embedding_engine.py MODEL THREADS TEXTS.json SECONDS

A program of its own, which `bench embeddings` starts: the measurements import nothing of the service. Prints JSON:
texts per second in calls of one and of all, and the median seconds of a call of one, back to back and with pauses.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from backends.llamacpp.embedding import EmbeddingConfig, EmbeddingContext
from backends.llamacpp.model import GgufModel
from backends.llamacpp.wordpiece import WordPiece
from models.catalogue import Catalogue
from models.sources import materialise

PAUSE_S = 0.003
"""About what one client takes between two calls, there and back. A core that has slept begins with cold caches, whoever
calls."""


def main(name: str, threads: int, texts: list[str], seconds: float) -> dict[str, float]:
    model = GgufModel(
        materialise(Catalogue.load(None).resolve(name), "llamacpp", on_progress=lambda *_: None)
    )
    tokenizer = WordPiece.of(model)
    tokens = [
        tokenizer.encode(text) if tokenizer else model.tokenize(text, add_special=True, parse_special=True)
        for text in texts
    ]
    total = sum(map(len, tokens))
    context = EmbeddingContext(
        model,
        EmbeddingConfig(max_tokens=max(total, 512), max_sequences=max(2, len(texts)), n_threads=threads),
    )

    def timed(batches: list[list[list[int]]], pause_s: float = 0.0) -> list[float]:
        context.compute(batches[0])
        took: list[float] = []
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for batch in batches:
                if pause_s:
                    time.sleep(pause_s)
                before = time.perf_counter()
                context.compute(batch)
                took.append(time.perf_counter() - before)
        return took

    single = timed([[one] for one in tokens])
    paused = timed([[one] for one in tokens], PAUSE_S)
    whole = timed([tokens])
    context.close()
    model.close()
    return {
        "single_per_s": len(single) / sum(single),
        "single_s": median(single),
        "paused_s": median(paused),
        "whole_per_s": len(texts) * len(whole) / sum(whole),
        "tokens_per_text": total / len(texts),
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    found = main(sys.argv[1], int(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text()), float(sys.argv[4]))
    print(json.dumps(found))
