"""A run as one HTML file: the page at `/` with the events in it, and nothing that it would have to fetch."""

from __future__ import annotations

import json
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Iterable
from hashlib import sha256
from importlib.resources import files
from itertools import accumulate

from nanoinfer.serve.events import VERSION, Event

LIMIT = 1_000_000  # bytes of the file
ROOM = 600  # of these for what stands around the events


def read(name: str) -> str:
    """A file of the page by its name, as text."""
    return files("nanoinfer.serve").joinpath("page").joinpath(name).read_text(encoding="utf-8")


def as_html(events: Iterable[Event], title: str) -> str:
    """The file, of at most a megabyte: as many steps from the first one on as fit, and a note where some do not.

    title: said in the page; whatever it and texts of the events hold stays text.
    """
    page, style, script = read("index.html"), read("page.css"), read("page.js")
    room = LIMIT - ROOM - sum(len(part.encode()) for part in (page, style, script, title))
    encoded = [escaped(event) for event in events]
    fit = bisect_right([*accumulate(len(each) + 1 for each in encoded)], room)
    left = len(encoded) - fit
    note = f"Cut: the run went on for {left:,} more steps, which a megabyte has no room for." if left else ""
    head = escaped({"version": VERSION, "title": title, "note": note})
    data = f'{head[:-1]},"events":[{",".join(encoded[:fit])}]}}'
    policy = f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; img-src data:"
    charset = '<meta charset="utf-8">'
    scripts = f'<script type="application/json" id="recording">{data}</script>\n<script>{script}</script>\n'
    for old, new in {
        charset: f'{charset}\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<link rel="stylesheet" href="page.css">': f"<style>{style}</style>",
        '<script src="page.js" defer></script>\n': "",
        "</body>": f"{scripts}</body>",
    }.items():
        assert old in page
        page = page.replace(old, new, 1)
    return page


def escaped(value: object) -> str:
    """JSON in ASCII that ends no script element, whatever texts are in it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def digest(text: str) -> str:
    """By which a page's policy lets this script or style run, and no other."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
