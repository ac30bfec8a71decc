"""A model's name to the files that hold it: a folder, a file, or the hub's cache. Chapter 1.

The hub is asked for safetensors, configuration and the files that tell a tokenizer, and for nothing else, through
huggingface_hub, whose cache, progress bar and environment variables (`HF_HUB_OFFLINE`, `HF_HOME`) are in force.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nanoinfer.model.config import END_OF_TEXT, PRESETS, ModelConfig

SHIPPED = "small"  # the model in nanoinfer/data/small
HUB_NAMES = {name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")}
HUB_NAMES["distilgpt2"] = "distilbert/distilgpt2"
VOCAB_SHA256 = (
    "3a1f1c010d179f036be1992bc14b861e326341438633869c694dc4dccfe153d3"  # of GPT-2's tokens in order, in lines
)
OTHER_TOKENIZERS = ("vocab.txt", "spiece.model", "tokenizer.model")  # files that GPT-2's has not
MOST_JSON = 1 << 26  # bytes; the largest tokenizer.json has half as many, and /dev/zero has no end
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


class WeightsError(ValueError):
    """A model that cannot be had or read: one sentence that says what to do."""


def random_config(name: str, revision: str | None = None) -> ModelConfig:
    """The shape that `random:PRESET` names. WeightsError for an unknown one, or a revision."""
    if revision is not None:
        raise _no_revision(name)
    preset = name.removeprefix("random:")
    if preset not in PRESETS:
        raise WeightsError(f"there is no model {name!r:.200}: random weights come in the shapes {', '.join(PRESETS)}")
    return PRESETS[preset]


def _no_revision(name: str) -> WeightsError:
    return WeightsError(f"only a model on the hub has revisions, and {name} is not there: leave revision out")


def locate(name: str | Path, revision: str | None) -> tuple[Path, list[Path]]:
    """Paths of config.json and of the weights files, fetched from the hub where `name` is one of its models."""
    if not str(name).strip():
        raise WeightsError("model must be a name, a folder or a file, not ''")
    text, path = str(name), Path(name).expanduser()
    if revision is not None and text not in HUB_NAMES and (text == SHIPPED or path.exists()):
        raise _no_revision(text)
    if text == SHIPPED:
        folder = Path(__file__).parents[1] / "data" / SHIPPED
        return folder / "config.json", _folder_files(folder)
    if text in HUB_NAMES:
        return _hub_files(HUB_NAMES[text], revision)
    if path.is_dir():
        return path / "config.json", _folder_files(path)
    if path.is_file():
        if path.suffix != ".safetensors":
            raise WeightsError(f"{path} is no .safetensors file: weights are never unpickled")
        return path.parent / "config.json", [path]
    looks_local = isinstance(name, Path) or text.startswith((".", "/", "~")) or text.endswith(".safetensors")
    if not looks_local and re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return _hub_files(text, revision)
    hint = f"give {', '.join([SHIPPED, *HUB_NAMES])}, owner/name, a folder, or random:gpt2"
    for close in get_close_matches(text, [SHIPPED, *HUB_NAMES, *(f"random:{preset}" for preset in PRESETS)], n=1):
        hint = f"did you mean {close}?"
    raise WeightsError(f"there is no model {text!r:.200}: " + ("no such file or folder" if looks_local else hint))


def _folder_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return [folder / shard for shard in shard_names(folder / INDEX)]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
        raise WeightsError(f"{folder} holds pickled weights, which are never loaded: convert them to {WEIGHTS}")
    raise WeightsError(f"{folder} holds neither {WEIGHTS} nor {INDEX}")


def shard_names(index: Path) -> list[str]:
    """The files that an index names. Each must be a plain name: an index may not point out of its folder."""
    data = read_json(index)
    shards = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise WeightsError(f"{index} has no weight_map")
    for shard in shards.values():
        if not isinstance(shard, str) or not re.fullmatch(r"[\w-][\w.-]*\.safetensors", shard):
            raise WeightsError(f"{index} names {shard!r:.80}, which is no plain name of a .safetensors file")
    return sorted(set(shards.values()))


def _hub_files(repository: str, revision: str | None) -> tuple[Path, list[Path]]:
    """Fetch what there is of the files that are read, and no others, through huggingface_hub's own cache."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ModuleNotFoundError:
        raise WeightsError(f"{repository} is on the Hugging Face hub: pip install huggingface_hub") from None

    def fetch(filename: str) -> Path:
        return Path(huggingface_hub.hf_hub_download(repository, filename, revision=revision))

    where = f"{repository} on the hub" + (f" at revision {revision!r}" if revision else "")
    try:
        config = fetch("config.json")
        if repository not in HUB_NAMES.values():  # of others it has to be seen whether the tokenizer is GPT-2's
            for name in (
                "generation_config.json", "tokenizer_config.json", "vocab.json", "tokenizer.json", *OTHER_TOKENIZERS
            ):  # fmt: skip
                with suppress(errors.EntryNotFoundError):  # not there, or not in the cache
                    fetch(name)
        try:
            return config, [fetch(WEIGHTS)]
        except errors.LocalEntryNotFoundError:
            index = huggingface_hub.try_to_load_from_cache(repository, INDEX, revision=revision)
            if huggingface_hub.constants.HF_HUB_OFFLINE and isinstance(index, str):
                return config, [fetch(shard) for shard in shard_names(fetch(INDEX))]
            raise
        except errors.EntryNotFoundError:
            return config, [fetch(shard) for shard in shard_names(fetch(INDEX))]
    except errors.GatedRepoError:
        raise WeightsError(f"{where} asks for a licence: accept it there and log in with `hf auth login`") from None
    except errors.RevisionNotFoundError:
        raise WeightsError(f"there is no {where}: check the revision") from None
    except errors.RepositoryNotFoundError:
        raise WeightsError(f"there is no {where}, or it is private: check the name") from None
    except errors.LocalEntryNotFoundError:
        how = f"connect once{', without HF_HUB_OFFLINE,' * huggingface_hub.constants.HF_HUB_OFFLINE} or give a folder"
        how += f" with config.json and {WEIGHTS}"
        raise WeightsError(f"{where} is not in the hub cache and cannot be fetched: {how}") from None
    except errors.EntryNotFoundError:
        raise WeightsError(f"{where} has no config.json with {WEIGHTS} or {INDEX}") from None
    except (errors.HFValidationError, errors.HfHubHTTPError, OSError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise WeightsError(f"{where} cannot be fetched: {first}") from None


def check_tokenizer(config: Path) -> None:
    """WeightsError where the files beside config.json tell of another tokenizer than GPT-2's, whose ids text becomes.

    Without any such file a model is taken to have GPT-2's; ids that come after GPT-2's may have been added.
    """
    folder, found = config.parent, ""
    for path in (config, folder / "tokenizer_config.json"):
        data = read_json(path) if path.is_file() else None
        named = data.get("tokenizer_class") if isinstance(data, dict) else None
        if isinstance(named, str) and not re.fullmatch("(GPT2|PreTrained)Tokenizer(Fast)?", named):
            found = f"{path.name} names {named:.80}"
    for path in (folder / "vocab.json", folder / "tokenizer.json"):
        if path.is_file() and not _is_gpt2s(read_json(path)):
            found = f"{path.name} holds other tokens"
    for name in OTHER_TOKENIZERS:
        if (folder / name).is_file():
            found = f"it holds {name}"
    if found:
        raise WeightsError(f"{folder} has a tokenizer that is not GPT-2's, and no other is known here: {found}")


def _is_gpt2s(data: Any) -> bool:
    """Whether a vocab.json, or the model in a tokenizer.json, gives GPT-2's tokens GPT-2's ids."""
    for name in ("model", "vocab"):  # of tokenizer.json; "model" and "vocab" of a vocab.json are tokens, with numbers
        data = data[name] if isinstance(data, dict) and isinstance(data.get(name), dict) else data
    ids = {id_: token for token, id_ in data.items() if type(id_) is int} if isinstance(data, dict) else {}
    tokens = "\n".join(str(ids.get(id_)) for id_ in range(END_OF_TEXT))
    return hashlib.sha256(tokens.encode("utf-8", "replace")).hexdigest() == VOCAB_SHA256


def read_json(path: Path) -> Any:
    """What the file holds, or WeightsError."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_JSON + 1)
        if len(data) > MOST_JSON:
            raise ValueError(f"it has more than {MOST_JSON:,} bytes")
        return json.loads(data)
    except FileNotFoundError:
        raise WeightsError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is no JSON: {error}") from None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from None
