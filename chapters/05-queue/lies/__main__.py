"""`python chapters/05-queue/lies`: play each scene in the right queue and in the wrong one; exit 1 for no lie."""

from nanobook.lies import main

main(__file__)
