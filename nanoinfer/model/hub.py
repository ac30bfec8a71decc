"""A model's name to the files that hold it: a folder, a file, or the hub's cache. Chapter 1.

The hub is asked for config.json and safetensors and for nothing else, through huggingface_hub, whose cache, progress
bar and environment variables (`HF_HUB_OFFLINE`, `HF_HOME`) are in force.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nanoinfer.model.config import PRESETS, ModelConfig

SHIPPED = "small"  # the model in nanoinfer/data/small
HUB_NAMES = {name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")}
HUB_NAMES["distilgpt2"] = "distilbert/distilgpt2"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


class WeightsError(ValueError):
    """A model that cannot be had or read: one sentence that says what to do."""


def random_config(name: str) -> ModelConfig:
    """The shape that `random:PRESET` names. WeightsError for an unknown one."""
    preset = name.removeprefix("random:")
    if preset not in PRESETS:
        raise WeightsError(f"there is no model {name!r:.200}: random weights come in the shapes {', '.join(PRESETS)}")
    return PRESETS[preset]


def locate(name: str | Path, revision: str | None) -> tuple[Path, list[Path]]:
    """Paths of config.json and of the weights files, fetched from the hub where `name` is one of its models."""
    if not str(name).strip():
        raise WeightsError("model must be a name, a folder or a file, not ''")
    text, path = str(name), Path(name).expanduser()
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
    """Fetch config and safetensors, and nothing else, through huggingface_hub's own cache."""
    import huggingface_hub
    from huggingface_hub import errors

    def fetch(filename: str) -> Path:
        return Path(huggingface_hub.hf_hub_download(repository, filename, revision=revision))

    where = f"{repository} on the hub" + (f" at revision {revision!r}" if revision else "")
    try:
        config = fetch("config.json")
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
        how = "connect once, without HF_HUB_OFFLINE, or give a folder"
        raise WeightsError(f"{where} is not in the hub cache and cannot be fetched: {how}") from None
    except errors.EntryNotFoundError:
        raise WeightsError(f"{where} has no config.json with {WEIGHTS} or {INDEX}") from None
    except (errors.HFValidationError, errors.HfHubHTTPError, OSError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise WeightsError(f"{where} cannot be fetched: {first}") from None


def read_json(path: Path) -> Any:
    """What the file holds, or WeightsError."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise WeightsError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is no JSON: {error}") from None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from None
