"""The yardstick: a 5-gram model on the same tokens, interpolated modified Kneser-Ney.

Chen and Goodman 1999, "An empirical study of smoothing techniques for language modeling". Its
probability of a word after a context of any length is

    P(w | context) = max(count(context w) - D, 0) / count(context) + left(context) * P(w | context without its first)

where the longest contexts count occurrences, shorter ones count the different words seen before them, D depends on
whether the count is 1, 2 or more, and `left` is what the D took away. Below the unigrams stands 1 / vocabulary.

N-grams of each order lie in one sorted array of whole numbers: (number of the (n-1)-gram before) * 65536 + last token.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer

from training.data import load

BASE = 1 << 16  # tokens are below it


@dataclass
class Order:
    """All n-grams of one length n; those of one context (their first n-1 tokens) stand side by side."""

    keys: np.ndarray  # (G,) int64, sorted
    suffix: np.ndarray  # (G,) number of the n-gram's last n-1 tokens among those of order n-1
    counts: np.ndarray  # (G,) int64
    discounts: np.ndarray  # (4,) for counts of 0, 1, 2, and 3 or more
    total: np.ndarray  # (contexts,) sum of counts after each context
    left: np.ndarray  # (contexts,) share of probability that the discounts took


def find(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Numbers of `wanted` in the sorted `keys`, -1 where they are not there."""
    if not len(keys):
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1)


def discounts(counts: np.ndarray) -> np.ndarray:
    """D for counts 0, 1, 2, 3+ from how many n-grams were counted once to four times."""
    n1, n2, n3, n4 = (np.count_nonzero(counts == n) for n in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return np.array([0.0, 0.5, 0.5, 0.5])  # a text too small for the estimate
    y = n1 / (n1 + 2 * n2)
    estimate = np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
    return np.clip(estimate, 0.0, [0.0, 1.0, 2.0, 3.0])


class KneserNey:
    """An n-gram model of `order` tokens, fitted to the stream `tokens`; `vocab` is the number of possible tokens."""

    def __init__(self, tokens: np.ndarray, order: int, vocab: int) -> None:
        self.vocab = vocab
        stream = tokens.astype(np.int64)
        number = np.zeros(len(stream) + 1, np.int64)  # of the n-gram that begins at each place; n = 0: the empty one
        found: list[tuple[np.ndarray, np.ndarray]] = []  # (keys, suffix) of order 1, 2, ...
        for n in range(1, order + 1):
            places = len(stream) - n + 1
            keys, number = np.unique(number[:places] * BASE + stream[n - 1 :], return_inverse=True)
            if n == order:
                counts = np.bincount(number)
            before, last = np.divmod(keys, BASE)
            shorter = found[-1][1][before] * BASE + last if n > 1 else keys  # the key without its first token
            suffix = find(found[-1][0], shorter) if n > 1 else np.zeros(len(keys), np.int64)
            found.append((keys, suffix))
        self.orders: list[Order] = []
        for n in range(order, 0, -1):
            keys, suffix = found[n - 1]
            contexts = len(found[n - 2][0]) if n > 1 else 1
            self.orders.insert(0, self._order(keys, suffix, counts, contexts))
            if n > 1:  # how many different tokens stand before each shorter n-gram
                counts = np.bincount(suffix, minlength=contexts)

    @staticmethod
    def _order(keys: np.ndarray, suffix: np.ndarray, counts: np.ndarray, contexts: int) -> Order:
        context, discount = keys // BASE, discounts(counts)
        total = np.bincount(context, counts, contexts)
        taken = np.bincount(context, discount[np.minimum(counts, 3)], contexts)
        # A context that only ends the text has nothing after it: all of its share is left for the shorter one.
        left = np.divide(taken, total, out=np.ones(contexts), where=total > 0)
        return Order(keys, suffix, counts, discount, total, left)

    def probabilities(self, contexts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """P of tokens (N,) after contexts (N, up to order-1), newest last."""
        result = np.full(len(tokens), 1.0 / self.vocab)
        for n, order in enumerate(self.orders, start=1):
            if n - 1 > contexts.shape[1]:
                break
            context = self._numbers(contexts[:, contexts.shape[1] - (n - 1) :])
            known = (context >= 0) & (order.total[context] > 0)
            gram = np.where(known, find(order.keys, context * BASE + tokens), -1)
            counts = np.where(gram >= 0, order.counts[gram], 0)
            kept = counts - order.discounts[np.minimum(counts, 3)]
            seen = kept / np.where(known, order.total[context], 1.0) + order.left[context] * result
            result = np.where(known, seen, result)  # a context never seen says nothing
        return result

    def _numbers(self, grams: np.ndarray) -> np.ndarray:
        """Numbers of n-grams (N, n) among those of their order, -1 where never seen."""
        number = np.zeros(len(grams), np.int64)
        for n in range(grams.shape[1]):
            number = np.where(number >= 0, find(self.orders[n].keys, number * BASE + grams[:, n]), -1)
        return number


def main(train: Path, heldout: Path, order: int = 5, vocab: int = 50257, out: Path | None = None) -> None:
    """Fit to the token file TRAIN, and print the loss on HELDOUT in nats a token."""
    begin = time.perf_counter()
    model = KneserNey(load(train), order, vocab)
    tokens = load(heldout).astype(np.int64)
    stream = np.concatenate([np.full(order - 1, vocab - 1), tokens])  # end-of-text, the last id, in front
    contexts = np.lib.stride_tricks.sliding_window_view(stream, order - 1)[:-1]
    loss = float(-np.log(model.probabilities(contexts, tokens)).mean())
    print(f"{order}-gram: {loss:.4f} nats a token, perplexity {math.exp(loss):.1f}")
    seconds = round(time.perf_counter() - begin, 1)
    grams = [len(found.keys) for found in model.orders]
    result = {"order": order, "heldout": loss, "heldout_tokens": len(tokens), "ngrams": grams, "seconds": seconds}
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
