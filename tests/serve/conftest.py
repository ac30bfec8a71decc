"""A server for tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.serving import Served, engine, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving(engine()) as served:
        yield served
        served.idle()
