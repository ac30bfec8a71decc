"""What goes wrong with one request ends that request, and the others get the tokens that they would have had."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, AsyncLLM, SamplingParams
from nanoinfer.config import ENGINES
from nanoinfer.model.config import PRESETS
from nanoinfer.model.files import save_model
from nanoinfer.model.weights import load_model, random_model
from nanoinfer.outputs import RowReader
from nanoinfer.remote.llm import ProcessLLM
from nanoinfer.requests import to_json
from nanoinfer.text.stop import TextStream

VICTIM = "\x00victim"  # its stop string, by which each place knows it
PARAMS = [SamplingParams(max_tokens=12, seed=seed, ignore_eos=True) for seed in range(4)]
PARAMS[1] = SamplingParams(max_tokens=12, seed=1, ignore_eos=True, stop=[VICTIM])
PROMPTS = [[5, 6, 7], [8], [9, 10], [11, 12, 13, 14]]


class Broken(Exception):
    pass


def broken(owner: Any, name: str, is_victim: Callable[..., bool]) -> Callable[[pytest.MonkeyPatch], None]:
    original = getattr(owner, name)

    def instead(*args: Any, **kwargs: Any) -> Any:
        if is_victim(*args):
            raise Broken(name)
        return original(*args, **kwargs)

    return lambda patch: patch.setattr(owner, name, instead)


PLACES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "text": broken(TextStream, "push", lambda stream, token: VICTIM in stream._stop),
    "reader": broken(RowReader, "piece", lambda reader, tokens: VICTIM in reader._row.request.params.stop),
}


@pytest.fixture(scope="module", params=["dense", "paged"])
def llm(request: pytest.FixtureRequest) -> Iterator[AsyncLLM]:
    model = random_model(PRESETS["tiny"], seed=1, std=0.25)
    served = AsyncLLM(model, engine=request.param, max_batch=3, threads=1)
    yield served
    served.close()


async def texts(llm: AsyncLLM) -> list[Any]:
    """The tokens of each prompt, each in a call of its own, or what was raised there."""

    async def one(prompt: list[int], params: SamplingParams) -> Any:
        return [piece.token_ids async for piece in llm.stream(prompt, params)]

    return await asyncio.gather(*map(one, PROMPTS, PARAMS), return_exceptions=True)


def unharmed(got: list[Any]) -> list[Any]:
    """The tokens of all requests but the victim's."""
    return [sum(each, ()) for at, each in enumerate(got) if at != 1]


@pytest.mark.parametrize("place", PLACES)
def test_only_the_request_fails(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    before = asyncio.run(texts(llm))
    PLACES[place](monkeypatch)
    got = asyncio.run(texts(llm))
    assert isinstance(got[1], Broken)
    assert unharmed(got) == unharmed(before)
    llm.llm.loop.worker.submit(lambda: None).result()  # behind the engine's last step
    assert llm.alive
    assert llm.gauges[:3] == (0, 0, 0)  # rows, requests that wait, blocks in use


def test_an_engine_in_another_process_says_which_request_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's process raises in the text of one request; the server's side hears of that one alone."""
    from nanoinfer.parallel import processes
    from nanoinfer.remote import loop

    first = f"""
from nanoinfer.text.stop import TextStream
push = TextStream.push
def broken(self, token):
    if {VICTIM!r} in self._stop:
        raise KeyError("text")
    return push(self, token)
TextStream.push = broken
"""
    monkeypatch.setattr(loop, "spawn", lambda module: processes.spawn(module, first))

    async def both() -> list[Any]:
        async with ProcessLLM("random:tiny", engine="dense", max_batch=3, threads=1) as llm:
            done = await texts(llm)
            assert llm.alive
            return done

    got = asyncio.run(both())
    assert isinstance(got[1], RuntimeError)
    assert "KeyError" in str(got[1])
    assert list(map(len, unharmed(got))) == [12, 12, 12]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_gets_one_sentence(llm: AsyncLLM) -> None:
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            llm.llm.generate([[5]], SamplingParams(max_tokens=1))
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read().startswith("RuntimeError: this LLM belongs to the process that forked this one")
    os.waitpid(child, 0)


KINDS = [
    SamplingParams(max_tokens=3, temperature=0),
    SamplingParams(max_tokens=3, seed=1),
    SamplingParams(max_tokens=3, seed=1, top_k=40),
    SamplingParams(max_tokens=3, seed=1, top_p=0.9),
    SamplingParams(max_tokens=3, seed=1, top_k=40, logprobs=1, presence_penalty=1.0),
]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("engine", ENGINES)
def test_ids_are_in_the_vocabulary_whatever_a_step_computes(engine: str, value: float, device: torch.device) -> None:
    model = random_model(PRESETS["tiny"], seed=1, std=0.25).to(device)
    model.get_parameter("ln_f.weight").fill_(value)
    with LLM(model, engine=engine, max_batch=len(KINDS), threads=1) as llm:
        alone = [llm.generate([[5, 6]], params)[0] for params in KINDS]
        together = llm.generate([[5, 6]] * len(KINDS), KINDS)
    for done in alone + together:
        assert all(0 <= token < 50257 for token in done.token_ids)
    assert json.loads(to_json(together[-1].logprobs)) is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
@pytest.mark.parametrize("name", ["wte.weight", "h.1.mlp.c_fc.bias"])
def test_weights_that_are_no_numbers_in_a_type_are_refused_by_name(tmp_path: Path, name: str, value: float) -> None:
    model = random_model(PRESETS["tiny"], seed=1)
    model.get_parameter(name).view(-1)[3] = value
    save_model(model, tmp_path)
    if value == 1e6:
        load_model(tmp_path, torch.device("cpu"), torch.float32)
    with pytest.raises(ValueError, match=rf"NaN or infinity, in float16, in {name}"):
        load_model(tmp_path, torch.device("cpu"), torch.float16)
