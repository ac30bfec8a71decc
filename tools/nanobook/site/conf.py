"""Sphinx's settings for the book."""

from __future__ import annotations

from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

from nanoinfer import __version__

project = "nanoinfer"
author = "The nanoinfer authors"
copyright = "The nanoinfer authors; text under CC BY 4.0, code under the MIT licence"
version = release = __version__

extensions = ["myst_nb"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # outputs are stored in the notebooks, and checked elsewhere
nb_merge_streams = True
suppress_warnings = ["mystnb.unknown_mime_type"]

html_theme = "furo"
html_title = "nanoinfer"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = [("book.js", {"defer": "defer"})]
html_show_sourcelink = False
html_copy_source = False
html_last_updated_fmt = None
html_theme_options = {"navigation_with_keys": False}
html_math_renderer = "mathml"


def formula(translator: Any, node: Any, block: bool) -> None:
    """Write a formula as MathML, which browsers typeset without a script; Sphinx's default loads one from elsewhere."""
    translator.body.append(tex2mathml(node.astext(), as_block=block))
    raise SkipNode


def setup(app: Any) -> None:
    """Register the renderer."""
    inline = (lambda translator, node: formula(translator, node, block=False), None)
    displayed = (lambda translator, node: formula(translator, node, block=True), None)
    app.add_html_math_renderer("mathml", inline, displayed)
