"""Exercise 7.5: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from nanocourse.exercises.exercise import edition


def forward_with_a_table(text: list[int], longest: int, limit: int) -> list[int]:
    """One pass over the text, which notes where each n-gram ended last."""
    ended: dict[tuple[int, ...], int] = {}
    for end in range(1, len(text)):
        for n in range(1, min(longest, end) + 1):
            ended[tuple(text[end - n : end])] = end
    lengths = sorted((n for n in range(1, min(longest, len(text)) + 1) if tuple(text[-n:]) in ended), reverse=True)
    return [] if not lengths else text[ended[tuple(text[-lengths[0] :])] :][:limit]


def by_common_endings(text: list[int], longest: int, limit: int) -> list[int]:
    """How many tokens each place has in common with the end; the best of all places, the last one among equals."""

    def common(end: int) -> int:
        n = 0
        while n < min(longest, end) and text[end - 1 - n] == text[len(text) - 1 - n]:
            n += 1
        return n

    best = max(((common(end), end) for end in range(1, len(text))), default=(0, 0))
    return text[best[1] : best[1] + limit] if best[0] else []


_WHOLE = "the whole text stands nowhere else"
EQUIVALENT = {
    "for end in range(len(text) - 1, n - 2, -1):": "ahead of that place there are no n tokens",
    "for n in range(min(longest, len(text) + 1), 0, -1):": _WHOLE,
    "for n in range(min(longest, len(text) - 0), 0, -1):": _WHOLE,
    "for n in range(min(longest, len(text) - 1), -1, -1):": "no token is no n-gram of a text that has any",
}


@edition(
    "backwards",
    "the text stands with its newest token first, and settings and answer are dicts",
    args=lambda text, longest, limit: (text[::-1], {"longest": longest, "limit": limit}),
    back=lambda newest_first, settings: (newest_first[::-1], settings["longest"], settings["limit"]),
    result=lambda result, *plain: {"drafts": result},
    axes=("list", "draft"),
)
def backwards(newest_first: list[int], settings: dict[str, int]) -> dict[str, list[int]]:
    """Under "drafts" what followed the last time that the text went as it does now.

    newest_first: token ids of a text from its end to its beginning; it may be empty. settings: "longest", tokens of an
    n-gram at most, at least 1; and "limit", how many drafts are wanted at most, which may be 0.
    Take the n tokens that the text ends with, n as large as possible but "longest" at most, that stand earlier in the
    text as well. Earlier means that they end before the text's end; they may overlap with its last n tokens. Of several
    places that is the last one. The drafts are the tokens that follow there, in the order in which they follow:
    "limit" of them, or fewer where the text ends before. If not even the last token stands earlier, there are none.
    """
    for n in range(min(settings["longest"], len(newest_first) - 1), 0, -1):
        for behind in range(1, len(newest_first) - n + 1):
            if newest_first[behind : behind + n] == newest_first[:n]:
                return {"drafts": newest_first[:behind][::-1][: settings["limit"]]}
    return {"drafts": []}
