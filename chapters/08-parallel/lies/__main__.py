"""`python chapters/08-parallel/lies`: show each text by one rank and by two; exit 1 for no lie."""

from nanobook.lies import main

main(__file__)
