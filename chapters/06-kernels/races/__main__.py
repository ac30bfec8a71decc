"""`python chapters/06-kernels/races`: show the order of events by which each loses; exit 1 for no lie."""

from nanobook.lies import main

main(__file__)
