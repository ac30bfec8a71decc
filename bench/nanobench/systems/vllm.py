"""vLLM's offline engine with the same weights and its defaults: compiled, in CUDA graphs, scheduling asynchronously.

It reads a model from a folder, so the weights are written to a temporary one. Prefix caching is off, since the same
prompts come again. Token ids go in and out, and no tokenizer is loaded. It runs in a process of its own, so that its
memory shows only in what the driver reports, and its launches not at all; with VLLM_ENABLE_V1_MULTIPROCESSING=0 it runs
in this one, and both show. Greedy tokens need no top-k: vLLM is told not to ask for FlashInfer, which it would import.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nanobench.systems.base import Limits, Missing
from nanoinfer.model.files import config_json
from nanoinfer.model.gpt2 import GPT2

BESIDE = 8e9  # bytes for activations and graphs, beside the weights and the cache


class VLLM:
    """vllm.LLM over a folder with the given weights; its pool holds all rows of the largest case.

    options: for vllm.LLM, beside those that all cases need.
    """

    def __init__(self, model: GPT2, limits: Limits, **options: Any) -> None:
        if model.device.type != "cuda":
            raise Missing("vllm is measured on a CUDA GPU alone")
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        try:
            from vllm import LLM, SamplingParams, __version__
        except ImportError:
            raise Missing("vllm is not installed: pip install 'nanoinfer[vllm]'") from None
        self.name, self._params = "vllm", SamplingParams
        backend = options.get("attention_config", {}).get("backend")
        self.note = f"vLLM {__version__}" + (f", attention {backend}" if backend else "")
        self._folder = tempfile.TemporaryDirectory(prefix="nanoinfer-vllm-")  # gone with this object
        write_folder(model, Path(self._folder.name))
        self.llm: Any = LLM(
            model=self._folder.name,
            skip_tokenizer_init=True,
            dtype=str(model.dtype).removeprefix("torch."),
            max_model_len=limits.max_len,
            max_num_seqs=limits.max_batch,
            enable_prefix_caching=False,
            gpu_memory_utilization=share_of_memory(model, limits),
            seed=0,
            **options,
        )

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        asked = [{"prompt_token_ids": row} for row in prompts.tolist()]
        # Parameters are made anew each time: vLLM writes into them.
        greedy = self._params(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate(asked, greedy, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]  # in the order of the prompts


def share_of_memory(model: GPT2, limits: Limits) -> float:
    """The share of the GPU's memory that vLLM may take: what it needs for these cases, or most of what is free."""
    free, total = torch.cuda.mem_get_info(model.device)
    weights = sum(p.numel() for p in model.parameters()) * model.dtype.itemsize
    slots = limits.max_batch * (limits.max_len + 16)
    cache = slots * model.config.kv_numbers * model.dtype.itemsize
    return round(min(0.9 * free, weights + 1.1 * cache + BESIDE) / total, 4)


def write_folder(model: GPT2, folder: Path) -> None:
    """`config.json` and `model.safetensors` as transformers would write them; the head without its padding."""
    shapes = model.config.parameter_shapes()
    tensors = {
        f"transformer.{name}": value.detach()[: shapes[name][0]].cpu().contiguous()
        for name, value in model.named_parameters()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**config_json(model.config), "dtype": str(model.dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
