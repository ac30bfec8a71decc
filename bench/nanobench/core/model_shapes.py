"""A model's shape, without its weights: the estimate of a run needs it before anything is loaded."""

from __future__ import annotations

from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.hub import HUB_NAMES, locate, random_config
from nanoinfer.model.weights import read_config


def load_config(name: str) -> ModelConfig:
    """The shape of the model of that name. Of another model on the hub than GPT-2's, weights are downloaded as well."""
    if name in HUB_NAMES:
        return PRESETS[name]
    return random_config(name) if name.startswith("random:") else read_config(locate(name, None)[0])
