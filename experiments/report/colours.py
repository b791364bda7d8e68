"""Every colour of a report, once: the page in light, in dark and on paper, the arms, and the maps.

Figures take them from here, and ``css`` gives them to the style sheets and scripts of the report and of ``explore``.
"""

from matplotlib import colormaps
from matplotlib.colors import to_hex

LIGHT = {
    "paper": "#ffffff", "ink": "#1a1a1a", "soft": "#555555", "line": "#c9c9c9", "shade": "#f3f3f0",
    "accent": "#0b5394", "good": "#00614a", "bad": "#a33c00", "flat": "#5a4a00",
}  # fmt: skip
DARK = {
    "paper": "#16181a", "ink": "#ececec", "soft": "#b3b3b3", "line": "#4a4d50", "shade": "#222528",
    "accent": "#8fc1f0", "good": "#62d3ae", "bad": "#ff9e66", "flat": "#e3cf7a",
}  # fmt: skip
PRINT = LIGHT | {"ink": "#000000", "soft": "#444444", "line": "#bbbbbb"}

# Okabe and Ito's palette without its yellow, which is too pale for thin bars on white; black is the first arm's.
ARMS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#5f5f5f"  # of what is no arm
SHARES = colormaps["viridis"]  # of maps of attention
STOPS = 5  # of that map in a style sheet
SIGNED = {"more": "217, 95, 2", "less": "33, 102, 172"}  # towards Yes and away from it: red, green, blue


def css() -> str:
    """Return the colours as custom properties: ``--map`` has stops, ``--more`` and ``--less`` parts of ``rgb``."""
    stops = ", ".join(to_hex(SHARES(at / (STOPS - 1))) for at in range(STOPS))
    return (
        f":root {{ color-scheme: light dark; --map: {stops}; {_listed(SIGNED)} }}\n"
        f":root {{ {_listed(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_listed(DARK)} }} }}\n"
        f"@media print {{ :root {{ {_listed(PRINT)} }} }}\n"
    )


def _listed(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def in_dark(svg: bytes) -> bytes:
    """Return a drawing of matplotlib for dark pages: ground and ink change places, the arms keep their colours."""
    for light, dark in ((LIGHT["paper"], DARK["paper"]), (ARMS[0], DARK["ink"]), (GREY, DARK["soft"])):
        svg = svg.replace(light.encode(), dark.encode())
    return svg.replace(b"<svg ", f'<svg fill="{DARK["ink"]}" '.encode(), 1)  # of what has no colour: letters
