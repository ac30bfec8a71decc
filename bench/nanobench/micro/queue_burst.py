"""`bench queue --part burst`: many requests at once, beside what reading memory alone would allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanobench.core.presets import limit_seconds
from nanobench.core.records import Record
from nanobench.micro.queue_load import Load, at_once, drawn, greedy, made, say
from nanobench.micro.queue_records import Run, WarmUp
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2


class BandwidthLimit(Record):
    """The least time of the work, where every step only reads."""

    least_steps: int
    weights_s: float
    keys_and_values_s: float
    tokens_per_s: float


class BurstRuns(Record):
    """The same requests again and again; the first run is the first after warm_up."""

    rows: int  # at once at most
    max_batched_tokens: int
    warm_up: WarmUp
    limit: BandwidthLimit
    runs: tuple[Run, ...]

    @property
    def limit_share(self) -> float:
        """Of the bandwidth limit that the fastest run reached."""
        return max(run.tokens_per_s for run in self.runs) / self.limit.tokens_per_s


def bandwidth_limit(
    config: ModelConfig, itemsize: int, lengths: Sequence[tuple[int, int]], rows: int, bytes_per_s: float
) -> BandwidthLimit:
    """The least time for requests of these (prompt, new) tokens, whatever order an engine runs them in.

    A step gives each of at most `rows` rows one token, so there are at least as many steps as the longest request has
    new tokens, and at least all new tokens over `rows`. Each reads every weight once; and each new token but a
    request's first, which comes with its prompt, reads the keys and values of its context once. Nothing is counted for
    the prompts: they are limited by arithmetic, not by reading.
    """
    new = [tokens for _, tokens in lengths]
    steps = max(*new, -(-sum(new) // rows))
    contexts = sum((n - 1) * prompt + n * (n - 1) // 2 for prompt, n in lengths)
    weights = steps * limit_seconds(config, itemsize, 0, 0, bytes_per_s)
    whole = steps * limit_seconds(config, itemsize, 1, contexts / steps, bytes_per_s)
    return BandwidthLimit(
        least_steps=steps, weights_s=weights, keys_and_values_s=whole - weights, tokens_per_s=sum(new) / whole
    )


def burst(model: GPT2, load: Load, bytes_per_s: float) -> Iterator[BurstRuns]:
    """Each number of rows with each budget. bytes_per_s: at which the device copies memory."""
    prompts, new = drawn(load.requests, load.prompt, load.new, model.config.vocab_size)
    lengths = list(zip(map(len, prompts), new, strict=True))
    params = [greedy(tokens) for tokens in new]
    for rows in load.rows:
        limit = bandwidth_limit(model.config, model.dtype.itemsize, lengths, rows, bytes_per_s)
        say(
            f"{rows} rows: at least {limit.least_steps} steps; reading takes {limit.weights_s:.3f} s for weights and"
            f" {limit.keys_and_values_s:.3f} s for keys and values, so {limit.tokens_per_s:,.0f} tok/s at most"
        )
        for budget in load.budgets:
            llm, warm_up = made(model, rows, max_batched_tokens=budget)
            with llm:
                say(f"{rows} rows, max_batched_tokens {llm.max_batched_tokens}: {warm_up}")
                runs = []
                for n in range(load.repeats):
                    runs.append(run := at_once(llm, prompts, params))
                    share = run.tokens_per_s / limit.tokens_per_s
                    say(f"  {'after warm_up' if n == 0 else 'again':13} {run}; {share:.0%} of the limit")
                    say(f"  {'':13} {run.counted}")
                yield BurstRuns(
                    rows=rows, max_batched_tokens=llm.max_batched_tokens, warm_up=warm_up, limit=limit, runs=tuple(runs)
                )
