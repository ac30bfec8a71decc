"""Weights from a name, a folder, a file or a seed into one model. Chapter 1.

Files are safetensors in Hugging Face's layout; nothing is ever unpickled. Names and shapes are read from the files'
headers and held against config.json before memory is taken; then each tensor goes straight to its place on the
device, cast on the way, so the host never holds a second copy of the model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.hub import WeightsError, check_tokenizer, locate, random_config, read_json

# Tensors that published files hold besides the parameters: the causal mask, which is no parameter of ours.
_MASKS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
_FLOATS = ("F32", "F16", "BF16")

Read = Callable[[str], Any]  # a parameter's name -> its values: a tensor, or a file's view, which slices are read of


def load_model(
    name: str | Path, device: torch.device, dtype: torch.dtype, *, seed: int = 0, revision: str | None = None
) -> GPT2:
    """The model of that name, in evaluation mode, its parameters on `device` in `dtype`.

    name: `small`, which ships with the package; a preset on the hub (`gpt2`) or `owner/name` there; a folder, or a
    .safetensors file with config.json beside it; or `random:PRESET`. A preset's name means the hub; a folder of that
    name is `./gpt2`.
    seed: of `random:` weights. revision: of a model on the hub.
    Raises WeightsError (a ValueError).
    """
    with open_model(name, seed, revision) as (config, read), sized(config, device, dtype):
        return fill_model(GPT2(config, device, dtype), read)


def model_config(name: str | Path, revision: str | None = None) -> ModelConfig:
    """The shape of the model of that name. What is on the hub is fetched. Raises as `load_model`."""
    with open_model(name, 0, revision) as (config, _):
        return config


@contextmanager
def open_model(name: str | Path, seed: int, revision: str | None) -> Iterator[tuple[ModelConfig, Read]]:
    """The shape of the model of that name, and what reads its parameters. As `load_model`; nothing is read yet."""
    if str(name).startswith("random:"):
        config = random_config(str(name), revision)
        yield config, random_weights(config, seed)
        return
    config_path, files = locate(name, revision)
    config = read_config(config_path)
    check_tokenizer(config_path)
    with ExitStack() as stack:
        found: dict[str, Any] = {}  # views, of which nothing is read yet
        for path in files:
            _check(path, stack.enter_context(_open(path)), config, found)
        if missing := config.parameter_shapes().keys() - found.keys():
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise WeightsError(f"{config_path.parent} lacks {min(missing)}{others}, which its config.json asks for")
        head = found.get("lm_head.weight")
        if head is not None and not torch.equal(head[:], found["wte.weight"][:]):
            raise WeightsError(f"{config_path.parent} has a head of its own; GPT-2's is the token embedding")
        yield config, found.__getitem__


def read_config(path: Path) -> ModelConfig:
    """The shape that a config.json gives, and what ends a text. WeightsError where it is no GPT-2's.

    What ends a text is the generation_config.json's beside it, where there is one.
    """
    data, generation = read_json(path), path.with_name("generation_config.json")
    if generation.is_file() and isinstance(data, dict):
        told = read_json(generation)
        if isinstance(told, dict) and told.get("eos_token_id") is not None:
            data["eos_token_id"] = told["eos_token_id"]
    try:
        return ModelConfig.from_json(data)
    except ValueError as error:
        raise WeightsError(f"{path}: {error}") from None


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        file = safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError:
        raise WeightsError(f"{path} is missing") from None
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is cut off or no safetensors file ({error}): fetch or copy it again") from None
    with file:
        yield file


def _check(path: Path, file: Any, config: ModelConfig, found: dict[str, Any]) -> None:
    """Add the file's tensors to `found`, by the names without prefix; only the header is read."""
    shapes = config.parameter_shapes()
    shapes["lm_head.weight"] = shapes["wte.weight"]  # some files hold the tied head once more
    for key in file.keys():  # noqa: SIM118  safe_open is no dict
        name = key.removeprefix("transformer.")
        if _MASKS.fullmatch(name):
            continue
        if name not in shapes:
            raise WeightsError(f"{path} holds {key!r:.80}, which is no part of a GPT-2 of {config.n_layer} layers")
        if name in found:
            raise WeightsError(f"{path} holds {key!r:.80}, which came before in another form or file")
        view = file.get_slice(key)
        shape, kind = tuple(view.get_shape()), view.get_dtype()
        if shape != shapes[name]:
            raise WeightsError(f"{path} holds {key!r:.80} of shape {shape}; config.json makes it {shapes[name]}")
        if kind not in _FLOATS:
            raise WeightsError(f"{path} holds {key!r:.80} as {kind}; weights must be {', '.join(_FLOATS)}")
        found[name] = view


@contextmanager
def sized(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Where memory ends meanwhile, say how much a model of that shape takes."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if "memory" not in str(error).lower():
            raise
        size = config.parameters * dtype.itemsize
        raise WeightsError(f"the weights take {size / 1e9:.1f} GB, more than {device} has free") from None


@torch.no_grad()
def fill_model(model: GPT2, read: Read) -> GPT2:
    """Fill the parameters of a new model, and put it in evaluation mode."""
    model.requires_grad_(False).eval()
    extremes: dict[str, Tensor] = {}  # on the device, so that it is waited for once
    for name, (rows, *_) in model.config.parameter_shapes().items():
        target = model.get_parameter(name)
        target[:rows].copy_(read(name)[:])  # casts, and crosses to the device
        target[rows:].zero_()  # the head's padding; no rows elsewhere
        extremes[name] = torch.stack(target.aminmax())
    finite = torch.stack([*extremes.values()]).isfinite().all(1).tolist()  # NaN is the least and the greatest of any
    if broken := [name for name, right in zip(extremes, finite, strict=True) if not right]:
        others = f" and {len(broken) - 1} more tensors" if len(broken) > 1 else ""
        kind = str(model.dtype).removeprefix("torch.")
        raise WeightsError(
            f"the weights hold NaN or infinity, in {kind}, in {broken[0]}{others}: fetch or copy them again"
        )
    return model


def random_model(
    config: ModelConfig,
    seed: int,
    *,
    std: float = 0.02,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> GPT2:
    """A model with random weights. Proofs of equality need `std` of 0.1 or more: at GPT-2's own 0.02 attention hardly
    matters, and a hidden key leaves most greedy tokens as they were.
    """
    return fill_model(GPT2(config, device, dtype), random_weights(config, seed, std))


def random_weights(config: ModelConfig, seed: int, std: float = 0.02) -> Read:
    """Random weights: normal with standard deviation `std`, LayerNorm's weights around 1.

    Drawn on the CPU whatever the device, each tensor from a generator of its own, so that a seed gives the same model
    on every device.
    """
    shapes = config.parameter_shapes()

    def read(name: str) -> Tensor:
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        mean = 1.0 if re.search(r"ln_\w+\.weight$", name) else 0.0
        return torch.empty(shapes[name]).normal_(mean, std, generator=generator)

    return read
