"""The book as a site: `nanoinfer read`.

The chapters' Markdown, the notebooks and the source are written as pages for Sphinx, with the source beside the
sections that speak of it. Nothing here is needed to run an engine; Sphinx comes with the extra `docs`.
"""
