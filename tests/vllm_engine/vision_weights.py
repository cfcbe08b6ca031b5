"""A model of text and pictures as vLLM loads it: Idefics 3 in the small, with weights by chance.

    TEST_VLLM_PYTHON tests/vllm_engine/vision_weights.py TEXT_MODEL FOLDER

TEXT_MODEL lends its tokenizer and chat template. What the model says makes no sense, but depends on the whole picture.
Run with the interpreter that has vLLM: it needs torch and transformers. Of the architectures it is one whose code in
vLLM does without torchvision, which the build for CPUs does not have.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SIDE = 112
PATCH = 14
SCALE = 2
IMAGE_TOKENS = (SIDE // PATCH // SCALE) ** 2
MARKS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
TOKENS_PER_PICTURE = IMAGE_TOKENS + 3
"""With the marks around them."""


def main(text_model: str, folder: str) -> None:
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error")
    import torch
    from transformers import (
        AutoTokenizer,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessor,
        Idefics3Processor,
        LlamaConfig,
    )
    from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig

    tokenizer = AutoTokenizer.from_pretrained(text_model)
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    vision = Idefics3VisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
    )
    config = Idefics3Config(
        vision_config=vision,
        text_config=text,
        scale_factor=SCALE,
        image_token_id=tokenizer.convert_tokens_to_ids(MARKS[0]),
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(20)
    model = Idefics3ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.15)
    longest = {"longest_edge": SIDE}
    images = Idefics3ImageProcessor(size=longest, max_image_size=longest, do_image_splitting=False)
    processor = Idefics3Processor(
        image_processor=images,
        tokenizer=tokenizer,
        image_seq_len=IMAGE_TOKENS,
        chat_template=tokenizer.chat_template,
    )
    Path(folder).mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
