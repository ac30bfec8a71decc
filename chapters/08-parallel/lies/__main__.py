"""`python chapters/08-parallel/lies`: show each text by one rank and by two; exit 1 for no lie."""

from __future__ import annotations

import sys
from pathlib import Path

from loading import lies

catalogue, toy = lies("catalogue"), lies("toy")


def main(names: list[str]) -> int:
    """Print what these lies tell, all of them where none is named. 1 where both sides tell the same; 2: unknown."""
    if unknown := [name for name in names if name not in catalogue.LIES]:
        print(f"{Path(sys.argv[0]).name}: {unknown[0]!r} is none of {', '.join(catalogue.LIES)}", file=sys.stderr)
        return 2
    same = []
    for name in names or catalogue.LIES:
        lie = catalogue.LIES[name]
        right, wrong = (lie.told(kind) for kind in (toy.Rank, lie.wrong))
        print(f"{name}  {', '.join(lie.threads)}")
        for side, ranks in (("right", right), ("wrong", wrong)):
            for rank, told in enumerate(ranks):
                print(f"  {side}, rank {rank}  {' | '.join([*told.texts, told.end]).rstrip(' |')}")
        if right == wrong:
            same.append(name)
            print("  UNEXPECTED: both tell the same")
    return 1 if same else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
