"""`python chapters/07-speculation/lies`: show each text without guesses and with them; exit 1 for no lie."""

from nanobook.lies import main

main(__file__)
