"""Write the small model's card from the logs: `python -m training.card`.

Every number in the card comes out of `tools/training/logs`, and its samples out of the model itself.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from string import Template
from typing import Any

from nanoinfer import LLM, SamplingParams

LOGS = Path(__file__).with_name("logs")
SMALL = Path(__file__).parents[2] / "nanoinfer" / "data" / "small"
SAMPLE_PROMPT = "Once upon a time"
GREEDY_PROMPTS = ("Once upon a time", "The old fox looked up at the tree and said", '"Where are you going?" asked')
OTHER_LOGS = {"final", "evaluation", "ngram", "corpus", "drafts"}
SEEDS = range(5)  # the first five, as they come


def read(name: str) -> Any:
    """The log of that name."""
    return json.loads((LOGS / f"{name}.json").read_text(encoding="utf-8"))


def recipe_row(name: str, log: dict[str, Any]) -> str:
    """One line of the card's table."""
    s, end = log["settings"], log["curve"][-1]
    shape = f"{s['width']} x {s['layers']} x {s['heads']}"
    muon = f"{s['matrix_lr']:g}" if s["optimizer"] == "muon" else "none"
    cells = [
        name, shape, f"{log['parameters'] / 1e6:.2f}", f"{s['lr']:g}", muon, f"{s['decay']:g}", f"{s['dropout']:g}",
        f"{end['tokens'] / 1e6:.0f}", f"{end['seconds']:.0f}", f"{end['train']:.3f}", f"{end['heldout']:.3f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def quote(text: str) -> str:
    """Text as a Markdown quotation, line for line."""
    return "\n".join(f"> {line}".rstrip() for line in text.replace("<|endoftext|>", "").split("\n"))


def samples() -> str:
    """Greedy and sampled text, on a CPU in float32."""
    parts = []
    with LLM(f"{SMALL}", engine="naive", device="cpu") as llm:
        for prompt in GREEDY_PROMPTS:
            (out,) = llm.generate(prompt, SamplingParams(max_tokens=60, temperature=0.0))
            parts.append(f"Greedy, after `{prompt}`:\n\n{quote(prompt + out.text)}")
        for seed in SEEDS:
            params = SamplingParams(max_tokens=120, temperature=0.8, top_k=50, seed=seed)
            (out,) = llm.generate(SAMPLE_PROMPT, params)
            parts.append(f"Sampled, seed {seed}, after `{SAMPLE_PROMPT}`:\n\n{quote(SAMPLE_PROMPT + out.text)}")
    return "\n\n".join(parts)


def recipes() -> str:
    """The card's table, best first, the model itself last."""
    logs = [(path.stem, read(path.stem)) for path in LOGS.glob("*.json") if path.stem not in OTHER_LOGS]
    logs.sort(key=lambda item: item[1]["curve"][-1]["heldout"])
    return "\n".join(recipe_row(name, log) for name, log in [*logs, ("**the model**", read("final"))])


def drafts() -> str:
    """The card's table of drafters: a line for each, and temperature."""
    found = read("drafts")["found"]
    lines = []
    for temperature, drafter in dict.fromkeys((case["temperature"], case["drafter"]) for case in found):
        cases = [case for case in found if (case["temperature"], case["drafter"]) == (temperature, drafter)]
        cells = [f"{case['accepted']:.0%}, {case['tokens_a_step']:.2f}" for case in cases]
        lines.append("| " + " | ".join([f"{temperature:g}", drafter, *cells]) + " |")
    counts = list(dict.fromkeys(case["drafts"] for case in found))
    head = "| " + " | ".join(["temperature", "who drafts", *(f"{k} draft{'s' * (k > 1)}" for k in counts)]) + " |"
    return "\n".join([head, "| ---: | --- |" + " ---: |" * len(counts), *lines])


def numbers() -> dict[str, str]:
    """What the template asks for."""
    final, measured, corpus = read("final"), read("evaluation"), read("corpus")
    end = final["curve"][-1]
    losses = {name: measured[name] for name in ("heldout", "heldout_sliding", "train")}
    losses["ngram"] = read("ngram")["heldout"]
    result = {name: f"{value:g}" for name, value in final["settings"].items() if not isinstance(value, str)}
    result |= {name: f"{loss:.3f}" for name, loss in losses.items()}
    result |= {f"{name}_ppl": f"{math.exp(loss):.1f}" for name, loss in losses.items()}
    return result | {
        "steps": f"{final['settings']['steps']:,}",
        "cooldown": f"{final['settings']['cooldown']:.0%}",
        "head_size": str(final["settings"]["width"] // final["settings"]["heads"]),
        "parameters": f"{final['parameters']:,}",
        "megabytes": f"{(SMALL / 'model.safetensors').stat().st_size / 1e6:.1f}",
        "tokens": f"{end['tokens'] / 1e6:.0f}",
        "minutes": f"{end['seconds'] / 60:.1f}",
        "epochs": f"{end['tokens'] / corpus['train_tokens']:.0f}",
        "train_tokens": f"{corpus['train_tokens']:,}",
        "heldout_tokens": f"{corpus['heldout_tokens']:,}",
        "recipes": recipes(),
        "samples": samples(),
        "drafts": drafts(),
        "draft_entries": f"{sum(read('drafts')['entries']):,}",
        "draft_megabytes": f"{read('drafts')['bytes'] / 1e6:.1f}",
    }


def main() -> None:
    """Write README.md beside the model."""
    template = Template(Path(__file__).with_name("card.md").read_text(encoding="utf-8"))
    (SMALL / "README.md").write_text(template.substitute(numbers()), encoding="utf-8")


if __name__ == "__main__":
    main()
