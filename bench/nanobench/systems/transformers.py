"""Hugging Face transformers' `generate` with the same weights: no cache, its default one, or static and compiled.

transformers keeps a static cache from call to call while it is large enough, so the warm-up sizes it. Compile time is
not part of a timed run; the benchmark has torch forget compiled code where the batch size changes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanobench.systems.base import Limits, Missing
from nanoinfer.model.files import config_json
from nanoinfer.model.gpt2 import GPT2

OPTIONS: dict[str, dict[str, Any]] = {
    "transformers-nocache": {"use_cache": False},
    "transformers": {"use_cache": True},
    "transformers-static-compile": {"use_cache": True, "cache_implementation": "static"},
}


class Transformers:
    """GPT2LMHeadModel over a copy of the given weights. It sizes its caches itself, so `limits` are not needed."""

    def __init__(self, name: str, model: GPT2, limits: Limits) -> None:
        try:
            from transformers import GPT2Config, GPT2LMHeadModel
            from transformers.utils import logging
        except ImportError:
            raise Missing("transformers is not installed: pip install 'nanoinfer[peers]'") from None
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        self.name, self.options, self.device = name, OPTIONS[name], model.device
        config = GPT2Config(**{k: v for k, v in config_json(model.config).items() if k != "architectures"})
        with torch.device(model.device):
            untyped: Any = GPT2LMHeadModel
            self.model = untyped(config).to(model.dtype).eval()
        self.model.generation_config.eos_token_id = None  # all rows run to the last token, with nothing to check
        with torch.no_grad():
            for path, value in model.named_parameters():
                target = self.model.transformer.get_parameter(path)
                target.copy_(value[: len(target)])  # our head is padded, theirs is not

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        ids = prompts.to(self.device)
        fixed = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
        with torch.inference_mode():
            tokens: Tensor = self.model.generate(ids, max_new_tokens=new_tokens, **fixed, **self.options)
        rows: list[list[int]] = tokens[:, prompts.shape[1] :].tolist()
        return rows
