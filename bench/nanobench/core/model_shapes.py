"""A model's shape, without its weights: the estimate of a run needs it before anything is loaded."""

from __future__ import annotations

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.hub import locate, random_config
from nanoinfer.model.weights import read_config


def load_config(name: str) -> ModelConfig:
    """The shape of the model of that name. The weights of a model on the hub are downloaded all the same."""
    return random_config(name) if name.startswith("random:") else read_config(locate(name, None)[0])
