"""Chapter 3's numbers from results files: the kernel alone, KV usage, and tables of both.

The files come from `python -m bench kernels`, `ragged`, `memory` and `recompiles`, each with `--out
bench/results/h200-NAME.json`; `python -m nanobook prose` then fills the numbers into the text.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable
from functools import partial

from nanobench.core.records import Spread
from nanobench.micro.kv_usage import CacheUsage, KVUsageReport, short_lengths
from nanobench.micro.paged_kernel import KernelReport, KernelTime
from nanobench.micro.ragged import RaggedReport
from nanobench.micro.recompiles import RecompileReport
from nanobench.report.intervals import claimed
from nanobench.report.values import seconds, share, size
from nanobook.examples import only, results
from nanoinfer.model.config import PRESETS

HEADS, HEAD_SIZE, BYTES = 12, 64, 2  # gpt2's, bfloat16
WALK = 2 * 1024 * HEAD_SIZE * BYTES  # bytes of keys and values that one program reads of 1024 tokens


kernels = partial(results, KernelReport, "h200-kernels", "kernels")  # the kernel alone
ragged = partial(results, RaggedReport, "h200-ragged", "ragged")  # rows that bring different numbers of tokens
kv_usage = partial(results, KVUsageReport, "h200-memory", "memory")  # what both caches hold
recompiles = partial(results, RecompileReport, "h200-recompiles", "recompiles")  # what Triton compiled


def time_of(batch: int, context: int, variant: str) -> KernelTime:
    """One measured call. variant: "sdpa", "sdpa, mask", "chosen" for what the engine runs, or a number of splits."""
    name = f"paged, block 16, splits {variant}" if variant.isdigit() else variant
    return only(
        kernels().times, batch=batch, context=context, **{"chosen": True} if name == "chosen" else {"arm": name}
    )


def split_times() -> None:
    """The kernel over a context of 1024 by the number of splits; a star where the engine's choice is."""
    times = [t for t in kernels().times if t.context == 1024 and t.arm.startswith("paged, block 16")]
    counts = sorted({splits_of(t) for t in times})
    print(
        f"{'rows':>5}{'programs, not split':>21}"
        + "".join(f"{f'{n} splits' if n > 1 else 'not split':>13}" for n in counts)
    )
    for batch in sorted({t.batch for t in times}):
        cells = []
        for count in counts:
            found = next((t for t in times if t.batch == batch and splits_of(t) == count), None)
            cells.append(f"{seconds(found.seconds.median)}{'*' if found.chosen else ' '}" if found else "")
        print(f"{batch:>5}{batch * HEADS:>21}" + "".join(f"{cell:>13}" for cell in cells))


def splits_of(time: KernelTime) -> int:
    """The number of splits in a variant's name."""
    return int(time.arm.rsplit(" ", 1)[1])


def byte_times() -> None:
    """What keys and values are, how long the device's own copy would take for them, and what the kernel takes."""
    report = kernels()
    columns = f"{'keys and values':>17}{'at copy speed':>15}{'the kernel':>12}{'share':>8}{'SDPA, dense':>13}"
    print(f"{'rows':>5}{'context':>9}{columns}")
    for t in sorted((t for t in report.times if t.chosen), key=lambda t: (t.batch, t.context)):
        number = 2 * t.batch * t.context * HEADS * HEAD_SIZE * BYTES
        dense = time_of(t.batch, t.context, "sdpa").seconds.median
        cells = (size(number), seconds(number / report.copy_bytes_per_s), seconds(t.seconds.median))
        kernel, alone = f"{cells[2]:>12}{share(t.bytes_share):>8}", seconds(dense)
        print(f"{t.batch:>5}{t.context:>9}{cells[0]:>17}{cells[1]:>15}{kernel}{alone:>13}")
    print(
        "gpt2's heads, bfloat16. The L2 cache is cold: it holds none of these keys. In a captured graph: the calls were"
    )
    print("recorded and are replayed at one go, so the host's time does not count. at copy speed: a copy that moves as")
    print("many bytes, read plus written. share: that time over the kernel's.")


def ragged_time(case: str, variant: str = "ragged kernel") -> float:
    """Seconds of one call. variant: also "sdpa, padded" and "sdpa, pages gathered"."""
    return _ragged(case, variant).median


def _ragged(case: str, variant: str) -> Spread:
    return only(ragged().attention, case=case, arm=variant).seconds


def ragged_times() -> None:
    """The ragged kernel beside SDPA, on a rectangle and on gathered pages."""
    cases = dict.fromkeys((t.case, t.tokens) for t in ragged().attention)
    width = max(len(case) for case, _ in cases)
    print(f"{'':{width}}{'tokens':>7}{'SDPA, padded':>14}{'SDPA, gathered':>16}{'the kernel':>12}")
    for case, tokens in cases:
        sdpa = seconds(ragged_time(case, "sdpa, padded")), seconds(ragged_time(case, "sdpa, pages gathered"))
        print(f"{case:{width}}{tokens:>7}{sdpa[0]:>14}{sdpa[1]:>16}{seconds(ragged_time(case)):>12}")


def kv_usage_table() -> None:
    """Both caches on the same ragged batch: means over the decode steps."""
    report = kv_usage()
    print(f"{'':8}{'allocated':>12}{'reserved':>12}{'owned':>12}{'tokens':>12}{'owned, no token':>18}")
    for h in report.held:
        cells = "".join(f"{size(value):>12}" for value in (h.allocated, h.promised, h.owned, h.tokens))
        print(f"{h.engine:8}{cells}{share(h.fragmentation):>18}")
    print("allocated: the whole cache. reserved: what running rows may take. owned: what they have taken (a dense")
    print("row: all its room at once). tokens: what is written. The last column: how much of owned holds no token.")
    running = " and ".join(f"{h.rows:.0f}" for h in report.held)
    _note(
        f"gpt2, {report.requests} requests, {_rows()} rows at most: prompts of 1 to {report.max_tokens // 2} random "
        f"tokens, up to {report.max_tokens} new ones, but most texts end sooner, by a stop token. Room of a dense row: "
        f"{_room()} tokens. Means over all steps, in which {running} rows run. Texts are sampled, and the two engines "
        "round differently, so the texts differ."
    )


def _note(text: str) -> None:
    print(textwrap.fill(text, 104))


def _rows() -> int:
    return kv_usage().requests // 2  # as `memory` asks


def _room() -> int:
    """Tokens of a dense row, of which there is one more than run."""
    return _usage("dense").allocated // kv_usage().token_bytes // (_rows() + 1)


def _a_row(engine: str, what: str) -> float:
    """Bytes that a running row takes in the mean. what: `owned`, or `promised` with what is reserved."""
    found: float = getattr(_usage(engine), what) / _usage(engine).rows
    return found


def fixed_pool_table() -> None:
    """Many short requests in a pool of the same bytes."""
    report = kv_usage()
    for s in report.squeezed:
        print(f"{s.engine:8}{s.rows:>5} rows at once in {size(s.allocated)}: {s.tokens_per_s:,.0f} tok/s")
    lengths = short_lengths(report.short_requests, PRESETS["gpt2"].n_positions)
    mean, most = statistics.mean(lengths), max(lengths)
    _note(
        f"gpt2, {len(lengths)} requests of {min(lengths)} to {most:,} tokens, {mean:.0f} in the mean: half prompt, "
        f"half new tokens, of which each makes all. Room of a dense row: {most:,}. Blocks of {report.block_size}, as "
        "many as all requests need at once."
    )


def _usage(engine: str) -> CacheUsage:
    return only(kv_usage().held, engine=engine)


def _pool_seconds(engine: str) -> Spread:
    return only(kv_usage().squeezed, engine=engine).seconds


def _walk() -> float:
    """Seconds of one program's walk over 1024 tokens, with almost nothing else running."""
    return time_of(1, 1024, "1").seconds.median


def _ratio(top: tuple[int, int, str], bottom: tuple[int, int, str]) -> str:
    return claimed(time_of(*top).seconds, time_of(*bottom).seconds)


def _ragged_gain(case: str) -> str:
    return claimed(_ragged(case, "sdpa, padded"), _ragged(case, "ragged kernel"))


NUMBERS: dict[str, Callable[[], str]] = {
    "walk bytes": lambda: size(WALK),
    "walk room": lambda: size(_walk() * kernels().copy_bytes_per_s),
    "walk programs": lambda: f"{_walk() * kernels().copy_bytes_per_s / WALK:,.0f}",
    "per token": lambda: seconds(_walk() / 1024),
    "one row unsplit": lambda: seconds(_walk()),
    "one row chosen": lambda: seconds(time_of(1, 1024, "chosen").seconds.median),
    "one row gain": lambda: _ratio((1, 1024, "1"), (1, 1024, "chosen")),
    "one row short": lambda: seconds(time_of(1, 128, "chosen").seconds.median),
    "most rows share": lambda: share(time_of(256, 1024, "chosen").bytes_share),
    "even rows chosen": lambda: seconds(time_of(256, 512, "chosen").seconds.median),
    "even rows sdpa": lambda: seconds(time_of(256, 512, "sdpa").seconds.median),
    "ragged gain": lambda: _ragged_gain("31 prompts of 10 and one of 900"),
    "dense row": lambda: size(_a_row("dense", "owned")),
    "paged row": lambda: size(_a_row("paged", "owned")),
    "paged row reserved": lambda: size(_a_row("paged", "promised")),
    "rows by reservation": lambda: f"{_a_row('dense', 'owned') / _a_row('paged', 'promised'):.2f}×",
    "rows by owned": lambda: f"{_a_row('dense', 'owned') / _a_row('paged', 'owned'):.2f}×",
    "idle reservation": lambda: share(_usage("paged").idle_reservation),
    "most rows sdpa": lambda: share(time_of(256, 1024, "sdpa").bytes_share),
    "recompiled": lambda: f"{sum(recompiles().runs[-1].kernels.values())}",
    "compiled first": lambda: f"{sum(recompiles().runs[0].kernels.values())}",
    "fixed pool gain": lambda: claimed(_pool_seconds("dense"), _pool_seconds("paged")),
}
