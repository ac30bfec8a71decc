"""What chapter 5 adds, from a rung's own front door: `nanoinfer rung` puts this file beside the package."""

from __future__ import annotations

from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.chapters import ENGINES

PROMPTS = ["Once upon a time", "The dog", "A", "There was a king who had three sons, and the youngest of them"]
PARAMS = SamplingParams(max_tokens=20, temperature=0.8, seed=1)
FEW_PAGES = {"kv_blocks": 21, "preemption": True, "prefix_caching": True}


@pytest.mark.parametrize(
    "engine, pages", [("dense", {}), *((engine, FEW_PAGES) for engine in ENGINES if "paged" in engine)]
)
def test_small_steps_give_the_same_tokens(engine: str, pages: dict[str, Any]) -> None:
    """A budget that cuts prompts into chunks, and, over pages, sequences that give their room back."""
    params = SamplingParams(max_tokens=82 if pages else 20, temperature=0.8, seed=1, ignore_eos=True)
    whole = LLM(engine="dense").generate(PROMPTS, params)
    llm = LLM(engine=engine, max_batch=4, max_len=128, max_batched_tokens=7, prefill_chunk=4, **pages)
    assert [one.token_ids for one in llm.generate(PROMPTS, params)] == [one.token_ids for one in whole]
    assert llm.engine.stats.prefill_steps > len(PROMPTS)
    assert bool(llm.engine.stats.preemptions) == bool(pages)


@pytest.mark.parametrize("engine", ENGINES)
def test_samples_penalties_and_logprobs(engine: str) -> None:
    """Each sample is what its own seed gives; logprobs of new tokens and of the prompt's."""
    params = SamplingParams(max_tokens=6, seed=3, n=2, presence_penalty=1.5, logprobs=2, prompt_logprobs=1)
    llm = LLM(engine=engine)
    done = llm.generate(PROMPTS[:2], params)
    assert [(one.index, one.sample) for one in done] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for one in done:
        assert one.logprobs
        assert one.prompt_logprobs
        assert [each.token_id for each in one.logprobs] == list(one.token_ids)
        assert [each.token_id for each in one.prompt_logprobs[1:] if each] == list(one.prompt_token_ids[1:])
    again = SamplingParams(max_tokens=6, seed=done[1].seed, presence_penalty=1.5)
    assert llm.generate(PROMPTS[0], again)[0].token_ids == done[1].token_ids


def test_requests_come_and_go() -> None:
    """Submitted and cancelled while others run, in the engine's own steps."""
    llm, ended = LLM(), []
    request, other = llm.maker.requests(PROMPTS[:2], PARAMS)
    llm.engine.submit(request, ended.append)
    given_up = llm.engine.submit(other, ended.append)
    llm.engine.step()
    llm.engine.cancel(given_up)
    while llm.engine.busy:
        llm.engine.step()
    first, last = ended
    assert first is given_up
    assert first.cancelled
    assert last.token_ids == list(llm.generate(PROMPTS[0], PARAMS)[0].token_ids)
