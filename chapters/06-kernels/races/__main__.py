"""`python chapters/06-kernels/races`: show the order of events by which each loses; exit 1 where none is found."""

from __future__ import annotations

import sys
from pathlib import Path

from loading import races

catalogue = races("catalogue")


def main(names: list[str]) -> int:
    """Print these races, all of them where none is named. 1 where the wrong side never loses; 2: unknown."""
    if unknown := [name for name in names if name not in catalogue.RACES]:
        print(f"{Path(sys.argv[0]).name}: {unknown[0]!r} is none of {', '.join(catalogue.RACES)}", file=sys.stderr)
        return 2
    never = []
    for name in names or catalogue.RACES:
        race = catalogue.RACES[name]
        lost = race.wrong()[2]
        print(f"{name}  {', '.join(race.threads)}", *lost, sep="\n  ")
        if not lost:
            never.append(name)
            print("  UNEXPECTED: no interleaving loses")
    return 1 if never else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
