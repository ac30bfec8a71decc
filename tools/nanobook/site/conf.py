"""Sphinx's settings for the book."""

from nanoinfer import __version__

project = "nanoinfer"
author = "The nanoinfer authors"
copyright = "The nanoinfer authors; text under CC BY 4.0, code under the MIT licence"
version = release = __version__

extensions = ["myst_nb"]
myst_enable_extensions = ["colon_fence"]
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
