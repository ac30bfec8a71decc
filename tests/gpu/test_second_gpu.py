"""Every engine on a GPU that is not the current one: its tokens are the oracle's, and the current one stays current."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from nanoinfer import LLM
from nanoinfer.cache.none import forward_logits
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.outputs import RowReader
from nanoinfer.requests import Completion
from nanoinfer.verify import verify_tokens
from tests.conftest import SMALL, STD, prompts_of
from tests.engine.fake_graphed import LENGTHS, PARAMS
from tests.gpu.conftest import EAGER, GRAPHS, two_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("error::RuntimeWarning"), two_gpus]


@pytest.fixture(params=[(0, 1), (1, 0)], ids=["model-on-1", "model-on-0"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """The GPU that is current, and the model's, which is the other."""
    current, model = request.param
    with torch.cuda.device(current):
        yield current, f"cuda:{model}"


def prove(cpu_model: GPT2, done: list[Completion]) -> None:
    done = sorted(done, key=lambda one: one.index)
    verify_tokens(lambda text: forward_logits(cpu_model, text), done, PARAMS)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("engine, fused", [("naive", None), *EAGER, *GRAPHS])
def test_tokens(small_model: GPT2, place: tuple[int, str], engine: str, fused: bool | None, warm: bool) -> None:
    current, device = place
    llm = LLM(random_model(SMALL, seed=1, std=STD, device=device), engine=engine, fused=fused, max_batch=4)
    assert llm.model.device == torch.device(device)
    if warm:
        llm.warm_up()
    assert torch.cuda.current_device() == current
    done = llm.generate(prompts_of(LENGTHS), PARAMS)
    assert torch.cuda.current_device() == current
    prove(small_model, done)
    if engine.endswith("-graph"):
        assert llm.stats.replayed_steps == llm.stats.decode_steps > 0
        assert llm.stats.replayed_prefills == llm.stats.prefill_steps > 0
        assert not llm.stats.fallbacks
    for settled in llm.core.generate(llm.requests(prompts_of(LENGTHS), PARAMS)):  # in this thread, not the engine's own
        assert torch.cuda.current_device() == current
        done += [RowReader(row, llm.tokenizer).completion() for row in settled if row.finish_reason]
    prove(small_model, done[len(LENGTHS) :])
    logits = llm.forward_logits([[1, 2, 3]])
    assert (logits.device, torch.cuda.current_device()) == (torch.device(device), current)
    expected = forward_logits(small_model, torch.tensor([[1, 2, 3]]))
    torch.testing.assert_close(logits.cpu(), expected, rtol=1e-3, atol=1e-3)
    llm.close()
    assert torch.cuda.current_device() == current


def test_by_the_name_of_the_device() -> None:
    """The whole way through `LLM(device=...)`, in the dtype that it chooses; the two GPUs' tokens are the same."""
    found = []
    for device in ("cuda:0", "cuda:1"):
        with LLM("random:tiny", device=device, max_batch=4, pinned=True) as llm:
            assert llm.engine == "fused"
            llm.warm_up()
            found.append([c.token_ids for c in llm.generate(["Hello", "One two three"], PARAMS[:2])])
        assert torch.cuda.current_device() == 0
    assert found[0] == found[1]
