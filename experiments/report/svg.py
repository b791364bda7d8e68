"""A figure as the bytes of an SVG file, the same for the same figure."""

import io

import matplotlib as mpl
from matplotlib.figure import Figure


def svg_bytes(figure: Figure) -> bytes:
    """Fixed ids and no date: the same numbers give the same file. Glyphs as paths: the same look without our fonts."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "forestlens", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
