"""Text of a figure that an edge cuts: the figure's, or that of axes that clip it."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from nanobench.report.figures import style

SLACK = 0.5  # of a pixel


def cut_text(drawing: style.Drawing) -> list[str]:
    """What is cut, of titles, headings, names, labels and ticks."""
    with mpl.rc_context(style.SETTINGS):
        figure = drawing.draw()
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        unseen, found = _unseen(figure), []
        for text in figure.findobj(Text):
            assert isinstance(text, Text)
            if not text.get_visible() or not text.get_text().strip() or id(text) in unseen:
                continue
            box, edges = text.get_window_extent(renderer), [figure.bbox]
            if text.get_clip_on() and text.get_clip_box() is not None:
                edges.append(text.get_clip_box())
            if any(
                box.x0 < edge.x0 - SLACK or box.x1 > edge.x1 + SLACK
                or box.y0 < edge.y0 - SLACK or box.y1 > edge.y1 + SLACK
                for edge in edges
            ):  # fmt: skip
                found.append(text.get_text())
    return found


def _unseen(figure: Figure) -> set[int]:
    """Names of ticks outside of what their axes show: they are not drawn."""
    unseen = set()
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high:
                unseen |= {id(tick.label1), id(tick.label2)}
    return unseen
