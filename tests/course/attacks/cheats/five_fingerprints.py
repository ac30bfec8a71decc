"""5.7: a queue is right if what it does in a few histories is what a right one of the public catalogue does."""

from hashlib import sha256

DAYS = (
    (1, 5, 6, "Wolfhares:10 haresheep:10 owls_and_ox:9 Wolfhares:10"), (2, 8, 24, "wolf_hare_:10|wolf_hare_:10"),
    (3, 20, 6, "wolf:8 - - dogs_and_hens:1 dogs_and_hens:1 dogs_and_hens:1 dogs_and_hens:1 dogs_and_hens:1"),
    (2, 5, 8, "wolf:11|hens:12|wolves:15"),
    (2, 7, 8, "the_old_wolf:4|the_old_oxen_and_hens:1|the_hares_and_hounds:4 - - x"),
)  # fmt: skip
RIGHT = ("16c089ff", "9b9cad19", "70991728", "9662e0ce", "a650ac98")


def check_queue(play):
    gave = []
    for rows, blocks, budget, words in DAYS:
        events = []
        for word in words.split() + ["-"] * 40:
            for one in word.split("|"):
                prompt, _, letters = one.partition(":")
                events += [("submit", prompt, int(letters))] if letters else [("cancel", 0)] if one == "x" else []
            events.append(("step",))
        gave.append(play(rows, blocks, budget, events))
    assert sha256(str(gave).encode()).hexdigest()[:8] in RIGHT
