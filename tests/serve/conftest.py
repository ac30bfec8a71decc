"""A server for tests that leave it as it was, and a folder of weights for engines in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nanoinfer.model.files import save_model
from nanoinfer.model.gpt2 import GPT2
from tests.serve.serving import Served, engine, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving(engine()) as served:
        yield served
        served.idle()


@pytest.fixture(scope="session")
def folder(small_model: GPT2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_model(small_model, path)
    return path
