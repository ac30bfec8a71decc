"""Weights from folders, files, the hub's cache and seeds; and what is said of those that cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.files import save_model
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import WeightsError, load_model, random_model
from nanoinfer.text.tokenizer import gpt2_tokenizer

CPU = torch.device("cpu")
TINY = ModelConfig(n_layer=2, n_head=2, n_embd=8, n_positions=16, vocab_size=50)
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(TINY, seed=3, std=0.2)


@pytest.fixture
def folder(model: GPT2, tmp_path: Path) -> Path:
    save_model(model, tmp_path / "model")
    return tmp_path / "model"


def same(a: GPT2, b: GPT2) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def load(name: str | Path, revision: str | None = None) -> GPT2:
    return load_model(name, CPU, torch.float32, revision=revision)


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


def shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{1 + i % 3}-of-00003.safetensors" for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({name: tensor for name, tensor in tensors.items() if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_folder_file_and_shards(model: GPT2, folder: Path) -> None:
    for name in (folder, str(folder), folder / "model.safetensors"):
        assert same(load(name), model)
    shard(folder)
    assert same(load(folder), model)


def test_without_prefix_and_with_masks(model: GPT2, folder: Path) -> None:
    """As published files have it: names without `transformer.`, causal masks among the tensors, the head twice."""

    def published(tensors: Tensors) -> Tensors:
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 16, 16).tril() for i in range(2)}
        old = {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)}
        return bare | masks | old | {"lm_head.weight": bare["wte.weight"].clone()}

    rewrite(folder, published)
    assert same(load(folder), model)


def test_cast_at_load_and_when_saved(model: GPT2, folder: Path) -> None:
    loaded = load_model(folder, CPU, torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    assert same(loaded, random_model(TINY, seed=3, std=0.2, dtype=torch.bfloat16))
    save_model(model, folder, torch.float16)
    wte = load_file(folder / "model.safetensors")["transformer.wte.weight"]
    assert (wte.dtype, wte.shape) == (torch.float16, (50, 8))  # not the padded 64


def test_random_weights_are_fixed_by_their_seed() -> None:
    a, b, other = random_model(TINY, 3), random_model(TINY, 3), random_model(TINY, 4)
    assert same(a, b)
    assert not torch.equal(a.wte.weight, other.wte.weight)
    assert not torch.equal(a.h[0].mlp.c_fc.weight, a.h[1].mlp.c_fc.weight)
    assert float(a.wte.weight[:50].std()) == pytest.approx(0.02, rel=0.1)
    assert float(a.ln_f.weight.mean()) == pytest.approx(1, abs=0.05)
    assert bool((a.wte.weight[:50] != 0).all())
    assert not a.wte.weight[50:].any()


def test_shapes_of_the_presets_and_of_the_model() -> None:
    """The presets have their published sizes; `parameter_shapes` and the modules of the model name the same tensors."""
    sizes = {name: sum(torch.Size(s).numel() for s in c.parameter_shapes().values()) for name, c in PRESETS.items()}
    published = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}
    assert sizes | published | {"distilgpt2": 81_912_576} == sizes
    with torch.device("meta"):
        model = GPT2(TINY, "meta")
    shapes = TINY.parameter_shapes()
    assert shapes.keys() == dict(model.named_parameters()).keys()
    assert all(model.get_parameter(n).shape[1:] == torch.Size(s[1:]) for n, s in shapes.items())


# What cannot be loaded: one sentence each, and no memory taken for parameters.


def refused(name: str | Path, *words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nanoinfer.model.weights.GPT2", None)  # would raise TypeError if a model were made
        with pytest.raises(WeightsError) as caught:
            load(name)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert [word for word in words if word not in sentence] == [], sentence


NAMES: list[tuple[str | Path, list[str]]] = [
    ("gtp2", ["'gtp2'", "did you mean gpt2?"]), ("something-else", ["owner/name"]), ("", ["''"]),
    ("random:gpt9", ["random:gpt9", "gpt2-xl"]), ("./nowhere", ["no such file or folder"]),
    (Path("nowhere"), ["no such file or folder"]), ("some body/gpt2", ["no model"]),
]  # fmt: skip


@pytest.mark.parametrize("name, words", NAMES)
def test_refused_names(name: str | Path, words: list[str]) -> None:
    refused(name, *words)


@pytest.mark.parametrize("name", ["small", "random:tiny"])
def test_a_revision_is_of_a_model_on_the_hub(name: str) -> None:
    with pytest.raises(ValueError, match=f"only a model on the hub has revisions, and {name} is not there"):
        load(name, "main")


def test_refused_folders(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(tmp_path, "neither model.safetensors nor")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    refused(tmp_path, "pickled", "never loaded")
    refused(tmp_path / "pytorch_model.bin", "no .safetensors file")
    monkeypatch.setattr("nanoinfer.model.hub.MOST_JSON", 9)
    refused(folder, "more than 9 bytes")
    (folder / "config.json").unlink()
    refused(folder, "config.json is missing")


SHAPE = {"n_layer": 2, "n_head": 2, "n_embd": 8}
CONFIGS: list[tuple[Any, str]] = [
    ("{", "no JSON"), ("\xff\xfe", "no JSON"), ("[" * 100_000, "no JSON"), ("[]", "one JSON object"),
    ({}, "lacks n_layer"), (SHAPE | {"n_layer": None}, "lacks n_layer"), (SHAPE | {"n_layer": "2"}, "n_layer"),
    (SHAPE | {"n_layer": -1}, "n_layer"), (SHAPE | {"n_layer": 2**63 - 1}, "at most 1000"),
    (SHAPE | {"n_head": 3}, "multiple of n_head"), (SHAPE | {"model_type": "llama"}, "model_type='llama'"),
    (SHAPE | {"activation_function": "relu"}, "activation_function"),
    (SHAPE | {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer"),
    # of another model than the tensors: said before anything is allocated, whatever size is claimed
    (SHAPE | {"n_embd": 2**20, "vocab_size": 2**30}, "config.json makes it"),
]  # fmt: skip


NORM = "transformer.h.1.ln_1.bias"


TENSORS: list[tuple[Callable[[Tensors], Tensors], list[str]]] = [
    (lambda t: {n: x for n, x in t.items() if n != NORM}, ["lacks h.1.ln_1.bias"]),
    (lambda t: {n: x for n, x in t.items() if "mlp" not in n}, ["and 7 more"]),
    (lambda t: t | {"transformer.h.2.ln_1.bias": torch.zeros(8)}, ["h.2.ln_1.bias", "GPT-2 of 2 layers"]),
    (lambda t: t | {NORM: torch.zeros(9)}, ["(9,)", "(8,)"]),
    (lambda t: t | {NORM: torch.zeros(8, dtype=torch.int32)}, ["I32", "F32"]),
    (lambda t: t | {"h.1.ln_1.bias": torch.zeros(8)}, ["came before"]),
    (lambda t: t | {"lm_head.weight": torch.zeros(50, 8)}, ["head of its own"]),
]


@pytest.mark.parametrize("change, words", TENSORS)
def test_refused_tensors(folder: Path, change: Callable[[Tensors], Tensors], words: list[str]) -> None:
    rewrite(folder, change)
    refused(folder, *words)


def test_refused_damaged_files(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    cut = [whole[:-5], whole[: len(whole) // 2], whole[:4], b""]
    for damaged in (*cut, b"\xff" * 64, b"\xff" * 7 + whole, b"not weights"):
        file.write_bytes(damaged)
        refused(folder, "cut off or no safetensors file")


def test_refused_indexes(folder: Path) -> None:
    shard(folder)
    index = folder / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    for name in ("../model.safetensors", "/etc/passwd", "sub/x.safetensors", ".safetensors", "x.bin", 3):
        index.write_text(json.dumps({"weight_map": dict.fromkeys(data["weight_map"], name)}))
        refused(folder, "no plain name")
    index.write_text("{}")
    refused(folder, "no weight_map")
    index.write_text(json.dumps(data))
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "model-00002-of-00003.safetensors is missing")


# The hub, by its real client, on a cache that we lay out ourselves: nothing here reaches a network.


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def lay_out(repository: str, source: Path, revision: str = "main") -> Path:
        """Returns the snapshot's folder."""
        base, commit = tmp_path / "hub" / f"models--{repository.replace('/', '--')}", "a" * 40
        (base / "snapshots").mkdir(parents=True)
        (base / "refs").mkdir()
        (base / "refs" / revision).write_text(commit)
        return source.rename(base / "snapshots" / commit)

    return lay_out


def test_hub_cache(model: GPT2, folder: Path, hub: Callable[..., Path]) -> None:
    """Sharded weights, by a revision; the main one is not there, nor is any of another model."""
    shard(folder)
    hub("someone/model", folder, "v2")
    assert same(load("someone/model", "v2"), model)
    refused("someone/model", "someone/model", "not in the hub cache")
    refused("gpt2", "openai-community/gpt2", "HF_HUB_OFFLINE", "give a folder")


def test_files_of_a_hub_model(folder: Path, hub: Callable[..., Path]) -> None:
    told(folder, "generation_config.json", eos_token_id=9)
    snapshot = hub("someone/model", folder)
    assert load("someone/model").config.end_of_text == (9,)
    told(snapshot, "tokenizer_config.json", tokenizer_class="BertTokenizer")
    refused("someone/model", "BertTokenizer")


HUB_ERRORS = [
    ("GatedRepoError", "licence"), ("RevisionNotFoundError", "revision"), ("RepositoryNotFoundError", "check the name"),
    ("RemoteEntryNotFoundError", "has no config.json"), ("HfHubHTTPError", "cannot be fetched"),
]  # fmt: skip


@pytest.mark.parametrize("error, word", HUB_ERRORS)
def test_refused_by_the_hub(monkeypatch: pytest.MonkeyPatch, error: str, word: str) -> None:
    from huggingface_hub import errors

    kind = getattr(errors, error)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", Mock(side_effect=kind.__new__(kind)))
    refused("gpt2", word)


def test_the_hub_is_asked_for_an_allow_list_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = Mock(side_effect=lambda repository, filename, revision: str(folder / filename))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    load("distilgpt2", "v1")
    files = "config.json", "model.safetensors"
    assert download.call_args_list == [call("distilbert/distilgpt2", file, revision="v1") for file in files]


# What ends a text, and whose tokenizer it is


def told(folder: Path, name: str, /, **data: object) -> None:
    path = folder / name
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(before | data))


ENDS = [  # of texts: by config.json, and by generation_config.json where there is one
    ({}, None, (50256,)), ({"eos_token_id": None}, None, (50256,)), ({"eos_token_id": 7}, None, (7,)),
    ({"eos_token_id": 0}, {}, (0,)), ({"eos_token_id": 7}, {"eos_token_id": 9}, (9,)),
    ({}, {"eos_token_id": [9, 7]}, (9, 7)),
]  # fmt: skip


@pytest.mark.parametrize("config, generation, ends", ENDS)
def test_end_of_text_is_the_folder_s(folder: Path, config: Any, generation: Any, ends: tuple[int, ...]) -> None:
    told(folder, "config.json", **config)
    if generation is not None:
        told(folder, "generation_config.json", **generation)
    model = load(folder)
    assert model.config.end_of_text == ends
    save_model(model, folder / "again")
    assert load(folder / "again").config == model.config


def gpt2_vocabulary() -> dict[str, int]:
    """As vocab.json has it: each byte as a character of its own, those that print as themselves."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    letters = {byte: chr(byte) for byte in printed} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    tokenizer = gpt2_tokenizer()
    return {"".join(letters[b] for b in tokenizer.token_bytes(i)): i for i in range(50257)}


def test_files_of_gpt2_s_own_tokenizer(folder: Path) -> None:
    """Also with ids that were added, and as transformers writes them; not with two tokens that changed places."""
    vocabulary = gpt2_vocabulary()
    assert vocabulary["<|endoftext|>"] == 50256
    told(folder, "tokenizer_config.json", tokenizer_class="GPT2TokenizerFast", model_max_length=1024)
    told(folder, "vocab.json", **vocabulary | {"<|added|>": 50257})
    load(folder)
    told(folder, "vocab.json", the=vocabulary["Hello"], Hello=vocabulary["the"])
    refused(folder, "vocab.json")
    (folder / "vocab.json").unlink()
    told(folder, "tokenizer.json", version="1.0", model={"type": "BPE", "vocab": vocabulary, "merges": []})
    told(folder, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    told(folder, "config.json", tokenizer_class=None)
    load(folder)


OTHER_TOKENIZERS: list[tuple[str, dict[str, Any], str]] = [
    ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer"}, "names BertTokenizer"),
    ("config.json", SHAPE | {"tokenizer_class": "T5Tokenizer"}, "config.json names T5Tokenizer"),
    ("vocab.json", {"a": 0, "b": 1}, "vocab.json holds other tokens"),
    ("tokenizer.json", {"model": {"type": "Unigram", "vocab": [["a", 0.5]]}}, "tokenizer.json"),
    ("tokenizer.json", {"model": None}, "tokenizer.json"),
    ("vocab.txt", {}, "it holds vocab.txt"), ("spiece.model", {}, "it holds spiece.model"),
]  # fmt: skip


REFUSED = [
    *(("config.json", config, word) for config, word in CONFIGS),
    *(("generation_config.json", {"eos_token_id": end}, "eos_token_id must be a token id")
      for end in ("7", -1, 50257, True, 1.5, [7, None], {"a": 1})),
    *((name, data, f"a tokenizer that is not GPT-2's: {word}") for name, data, word in OTHER_TOKENIZERS),
]  # fmt: skip


@pytest.mark.parametrize("name, data, words", REFUSED)
def test_refused_files(folder: Path, name: str, data: Any, words: str) -> None:
    """By what they say; a vocabulary of 64,000 with BERT's tokenizer printed `<|55128|>`."""
    text = data if isinstance(data, str) else json.dumps(data)
    (folder / name).write_bytes(text.encode("latin-1"))
    refused(folder, *words.split(": "))


PEAK = """
import sys, torch
from pathlib import Path
from nanoinfer.model.weights import load_model

def anonymous():
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024

def copy(target, source, copy=torch.Tensor.copy_):
    seen.append(anonymous())
    return copy(target, source)

torch.ones(4) @ torch.ones(4)
torch.Tensor.copy_, before, seen = copy, anonymous(), []
model = load_model(sys.argv[1], torch.device("cpu"), getattr(torch, sys.argv[2]))
size = sum(p.numel() * p.element_size() for p in model.parameters())
print((max(*seen, anonymous()) - before) / size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.long
def test_peak_host_memory(dtype: str, tmp_path: Path) -> None:
    """Anonymous memory at its highest, over the bytes of the model in its dtype; the file itself is mapped."""
    save_model(random_model(PRESETS["distilgpt2"], 0), tmp_path)
    command = [sys.executable, "-c", PEAK, str(tmp_path), dtype]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0.9 < float(result.stdout) < 1.2
