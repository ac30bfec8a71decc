"""A model into files, and its shape without its weights: for training, measuring and tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from nanoinfer.model.config import END_OF_TEXT, ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.hub import WEIGHTS


def save_model(model: GPT2, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write config.json and model.safetensors, in `dtype` or as held, in the layout that transformers loads."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, shape in model.config.parameter_shapes().items():
        rows = model.get_parameter(name).detach()[: shape[0]]  # without the head's padding
        tensors[f"transformer.{name}"] = rows.to("cpu", dtype or rows.dtype).contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_json(model.config), indent=2) + "\n", encoding="utf-8")


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of this shape, as transformers reads it."""
    ends = config.end_of_text
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "n_layer": config.n_layer, "n_head": config.n_head, "n_embd": config.n_embd,
        "n_inner": config.n_inner or None, "n_positions": config.n_positions, "n_ctx": config.n_positions,
        "vocab_size": config.vocab_size, "layer_norm_epsilon": config.layer_norm_epsilon,
        "tie_word_embeddings": True, "bos_token_id": END_OF_TEXT,
        "eos_token_id": ends[0] if len(ends) == 1 else list(ends),
    }  # fmt: skip
