"""The shape of a GPT-2, and the presets that have a name. Chapter 1.

A `ModelConfig` is frozen: nothing in the engine changes it after the model is made. Field names are those of
Hugging Face's `config.json`, so that a folder's configuration can be read without a table of translations.
This module imports neither torch nor anything else of the package: arguments are checked before torch is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# cuBLAS leaves its fast kernels when the head has an odd number of rows, and 50257 is odd. Padded to a multiple
# of 64, the head alone gave 17% more tokens/s at 64 rows on an H200. Padded rows are zero and never seen outside.
VOCAB_MULTIPLE = 64
END_OF_TEXT = 50256  # the id of <|endoftext|> in GPT-2's vocabulary
MOST_LAYERS = 1000  # a damaged file must not make us name the tensors of 2^63 layers


@dataclass(frozen=True)
class ModelConfig:
    """The shape of one GPT-2 model."""

    n_layer: int
    n_head: int
    n_embd: int
    n_positions: int = 1024
    vocab_size: int = 50257
    n_inner: int = 0  # width of the MLP; 0 means 4 * n_embd, as in every published GPT-2
    layer_norm_epsilon: float = 1e-5
    end_of_text: tuple[int, ...] = (END_OF_TEXT,)  # ids that end a text

    def __post_init__(self) -> None:
        for name in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r:.40}")
        if self.n_layer > MOST_LAYERS:
            raise ValueError(f"n_layer must be at most {MOST_LAYERS}, not {self.n_layer:.3g}")
        if type(self.n_inner) is not int or self.n_inner < 0:
            raise ValueError(f"n_inner must be a whole number of at least 0, not {self.n_inner!r:.40}")
        if type(self.layer_norm_epsilon) not in (int, float) or not 0 < self.layer_norm_epsilon < 1:
            raise ValueError(f"layer_norm_epsilon must lie between 0 and 1, not {self.layer_norm_epsilon!r:.40}")
        most = max(self.vocab_size - 1, END_OF_TEXT)  # a smaller vocabulary may keep GPT-2's, and never ends by itself
        if any(type(token) is not int or not 0 <= token <= most for token in self.end_of_text):
            what = f"a token id up to {most}, or a list of them"
            raise ValueError(f"eos_token_id must be {what}, not {list(self.end_of_text)!r:.40}")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd must be a multiple of n_head, not {self.n_embd} with {self.n_head} heads")

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

    @property
    def inner(self) -> int:
        return self.n_inner or 4 * self.n_embd

    @property
    def padded_vocab(self) -> int:
        """Rows of the token embedding in memory; rows from `vocab_size` on are zero."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def parameters(self) -> int:
        """Numbers in a weights file: the tied head counted once, and without its padding."""
        return sum(math.prod(shape) for shape in self.parameter_shapes().values())

    @property
    def kv_numbers(self) -> int:
        """Numbers that a cache holds of one token: a key and a value of all heads in every layer."""
        return 2 * self.n_layer * self.n_head * self.head_size

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the model, by the name and in the shape that a weights file gives it (head not padded)."""
        C, A, I = self.n_embd, self.n_head * self.head_size, self.inner  # noqa: E741
        shapes: dict[str, tuple[int, ...]] = {"wte.weight": (self.vocab_size, C), "wpe.weight": (self.n_positions, C)}
        matrices = {"attn.c_attn": (C, 3 * A), "attn.c_proj": (A, C), "mlp.c_fc": (C, I), "mlp.c_proj": (I, C)}
        for layer in range(self.n_layer):
            for norm in ("ln_1", "ln_2"):
                shapes |= {f"h.{layer}.{norm}.weight": (C,), f"h.{layer}.{norm}.bias": (C,)}
            for name, shape in matrices.items():
                shapes |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[1:]}
        return shapes | {"ln_f.weight": (C,), "ln_f.bias": (C,)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Read Hugging Face's `config.json`. ValueError where it asks for something that is not GPT-2."""
        if not isinstance(data, Mapping):
            raise ValueError("config.json must hold one JSON object")
        for name, allowed in _ONLY.items():
            if name in data and data[name] not in allowed:
                raise ValueError(f"config.json has {name}={data[name]!r:.80}; this engine knows {allowed[0]!r}")
        missing = [name for name in ("n_layer", "n_head", "n_embd") if data.get(name) is None]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        names = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "n_inner", "layer_norm_epsilon")
        end = data["eos_token_id"] if data.get("eos_token_id") is not None else END_OF_TEXT
        ends = tuple(end) if isinstance(end, list) else (end,)
        return cls(**{name: data[name] for name in names if data.get(name) is not None}, end_of_text=ends)


# What config.json may say of each setting that this model has only one form of; the first is GPT-2's own.
_ONLY: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of one formula
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}

PRESETS: dict[str, ModelConfig] = {
    "gpt2": ModelConfig(n_layer=12, n_head=12, n_embd=768),
    "gpt2-medium": ModelConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": ModelConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": ModelConfig(n_layer=48, n_head=25, n_embd=1600),
    "distilgpt2": ModelConfig(n_layer=6, n_head=12, n_embd=768),
    "small": ModelConfig(n_layer=12, n_head=5, n_embd=160),  # ships with the package
    "tiny": ModelConfig(n_layer=2, n_head=4, n_embd=64, n_positions=256),  # has no weights but random ones
}
