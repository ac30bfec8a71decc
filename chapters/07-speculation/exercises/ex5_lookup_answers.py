"""Exercise 7.5: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from nanocourse.exercises.exercise import Edition, Right, Wrong


def most_frequent(text: list[int], longest: int, limit: int) -> list[int]:
    """Of several places that one counts whose next token is the most frequent."""
    for n in range(min(longest, len(text) - 1), 0, -1):
        ends = [end for end in range(n, len(text)) if text[end - n : end] == text[-n:]]
        if ends:
            following = [text[end] for end in ends]
            best = max(following, key=following.count)
            end = max(end for end in ends if text[end] == best)
            return text[end : end + limit]
    return []


LENGTHS = "range(min(longest, len(text) - 1), 0, -1)"
ENDS = "range(len(text) - 1, n - 1, -1)"
SAME = "text[end - n : end] == text[-n:]"
FOUND = "text[end : end + limit]"
WRONG = (
    Wrong.patch(
        "first-place", "What followed the first time is as good a guess.", ENDS, "range(n, len(text))",
        "an author's own slip: a search from the beginning, which is over sooner",
    ),
    Wrong.patch(
        "shortest-first", "The last token says most: longer n-grams are a luxury.", LENGTHS,
        "range(1, min(longest, len(text) - 1) + 1)",
        "vllm-project/vllm#15348: the largest n was ignored, and only the smallest one looked up",
    ),
    Wrong.patch(
        "longest-alone", "An n-gram of the full length stands earlier, or there is no guess.", LENGTHS,
        "[longest] if longest < len(text) else []", "a plausible slip: lengths tried one after the other are forgotten",
        unnamed="its-own-end",
    ),
    Wrong.patch(
        "any-length", "The longer, the better.", "min(longest, len(text) - 1)", "len(text) - 1",
        "vllm-project/vllm#15348, the other way about: a limit that is not looked at",
    ),
    Wrong.patch(
        "its-own-end", "The last place where these tokens stand is the text's end.", ENDS,
        "range(len(text), n - 1, -1)", "an author's own slip: it finds itself, and nothing follows",
    ),
    Wrong.patch(
        "no-overlap", "An earlier place ends before the last n tokens begin.", ENDS, "range(len(text) - n, n - 1, -1)",
        "an author's own slip: a row of equal tokens is found much too early, or not at all",
    ),
    Wrong.patch(
        "n-gram-again", "The drafts begin with the tokens that were found.", FOUND, "text[end - n : end - n + limit]",
        "an author's own slip: what the text ends with is not what comes next",
    ),
    Wrong.patch(
        "one-skipped", "The drafts follow the token after the n-gram.", FOUND, "text[end + 1 : end + 1 + limit]",
        "an author's own slip: ends counted as the last token's place",
    ),
    Wrong.patch(
        "limit-ignored", "All that follows is drafted.", FOUND, "text[end:]",
        "vllm-project/vllm#42533: drafts beyond what the row had room for",
    ),
    Wrong.patch(
        "all-or-nothing", "A guess is as long as it was asked for.", SAME,
        f"{SAME} and end + limit <= len(text)",
        "drafts of a fixed length, as a step of a fixed shape likes them: near the end there are none",
    ),
    Wrong.patch(
        "goes-on-in-a-circle", "Where the text ends, it goes on with what was found.", f"return {FOUND}",
        "return [text[end + at % (len(text) - end)] for at in range(limit)]",
        "what the engine does, whose loops are drafted whole; here drafts are tokens that stand in the text",
    ),
    Wrong.patch(
        "one-at-least", "Whoever asks gets a draft.", FOUND, "text[end : end + max(1, limit)]",
        "an author's own slip: a row at its last token has a limit of 0",
    ),
    Wrong.patch(
        "begin-left-out", "What the text begins with has nothing before it, so it is no earlier place.",
        ENDS, "range(len(text) - 1, n, -1)", "an author's own slip: off by one at the first place",
    ),
    Wrong.patch(
        "sum-of-tokens", "Tokens are compared by a hash.", SAME, "sum(text[end - n : end]) == sum(text[-n:])",
        "hashes that different n-grams share",
    ),
    Wrong.patch(
        "digits", "N-grams are compared as strings.", SAME,
        '"".join(map(str, text[end - n : end])) == "".join(map(str, text[-n:]))',
        "an author's own slip: 1, 23 and 12, 3",
    ),
    Wrong.patch(
        "sixteen-bits", "Token ids fit into 16 bits.", SAME,
        "[token & 65535 for token in text[end - n : end]] == [token & 65535 for token in text[-n:]]",
        "GPT-2's ids do, and a larger vocabulary's do not",
    ),
    Wrong(most_frequent, "n-gram models count what follows; the contract asks for the last place"),
)  # fmt: skip


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


def from_the_last(text: list[int], longest: int, limit: int) -> list[int]:
    """Places where the last token stands are tried for one token more, as long as any is left."""
    places = [end for end in range(1, len(text)) if text[end - 1] == text[-1]]
    if not places:
        return []
    for n in range(2, longest + 1):
        longer = [end for end in places if n <= end and text[end - n] == text[-n]]
        if not longer:
            break
        places = longer
    return [text[at] for at in range(places[-1], min(len(text), places[-1] + limit))]


RIGHT = (Right(forward_with_a_table), Right(by_common_endings), Right(from_the_last))
_WHOLE = "the whole text stands nowhere else"
EQUIVALENT = {
    "for end in range(len(text) - 1, n - 2, -1):": "ahead of that place there are no n tokens",
    "for n in range(min(len(text) - 1, longest), 0, -1):": "the smaller of two, in any order",
    "for n in range(min(longest, len(text) + 1), 0, -1):": _WHOLE,
    "for n in range(min(longest, len(text) - 0), 0, -1):": _WHOLE,
    "for n in range(min(longest, len(text) - 1), -1, -1):": "no token is no n-gram of a text that has any",
}


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


EDITIONS = (
    Edition(
        "backwards", "the text stands with its newest token first, and settings and answer are dicts", backwards,
        args=lambda text, longest, limit: (text[::-1], {"longest": longest, "limit": limit}),
        back=lambda newest_first, settings: (newest_first[::-1], settings["longest"], settings["limit"]),
        result=lambda result, *plain: {"drafts": result}, axes=("list", "draft"),
    ),
)  # fmt: skip
