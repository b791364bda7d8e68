"""Build one self-contained report.html from a run's directory. Reads only that directory, and no model."""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from experiments.metrics.claims import SMALL
from experiments.report import cases, colours, examples, figures, page
from experiments.report.cases import address, attention_of_cases
from experiments.report.numbers import percent, share
from experiments.report.saved_run import SavedRun, read_run
from experiments.report.sections import attention_section, read_sections
from experiments.report.tables import copies, lines_of
from experiments.report.text import count, ends, level, value
from experiments.runs import analyses
from interp.atomic import atomic_write
from interp.errors import UserError

# In the order in which they need each other.
SCRIPTS = ("elements", "data", "list", "picture", "attention", "labels", "case", "tables", "main")


def build(run_dir: Path) -> Path:
    """Draw the run's figures, write its report.html, and return the latter's path.

    Reads results.csv, metrics.json, environment.json, predictions.jsonl, thumbnails/ and, if they exist,
    attention.json, sections/ and missing.json. Writes figures/ and report.html. The same files give the same bytes.
    A figure that cannot be drawn is left out, and a sentence says so (``experiments.runs.analyses``).

    Raises:
        UserError: a file is missing or not of the expected shape, or the directory cannot be written.
    """
    # Lone surrogates, which JSON can carry and UTF-8 cannot, become "?".
    return _write(run_dir / "report.html", render(run_dir).encode("utf-8", errors="replace"))


def render(run_dir: Path) -> str:
    """Return the page that ``build`` writes.

    Raises:
        UserError: as ``build``.
    """
    run = read_run(run_dir)
    templates, drawn = _templates(), _figures(run)
    curve = drawn.pop("attention_by_layer", None)
    attention = attention_section(run.directory, [curve] if curve else [])
    return templates.get_template("report.html.j2").render(
        **page.context(run),
        colours=colours.css(),
        small=SMALL,
        figures=[figure for figure in drawn.values() if figure],
        attention=attention,
        sections=read_sections(run_dir),
        missing=analyses.missing(run_dir),
        **_browser(run, templates),
    )


@cache
def _templates() -> Environment:
    """Keeps what it has compiled, for a sweep's next page."""
    # Everything a template prints is escaped, whatever the template's name: models and data are not trusted.
    templates = Environment(loader=PackageLoader("experiments.report"), autoescape=True, undefined=StrictUndefined,
                            trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    templates.filters |= {"copies": copies, "address": address, "in_points": lambda change: percent(change, sign=True),
                          "lines_of": lines_of, "value": value, "ends": ends, "count": count, "level": level,
                          "share": share}  # fmt: skip
    return templates


def _browser(run: SavedRun, templates: Environment) -> dict[str, Any]:
    """Return the first cases, the browser's data and script, and the hash that lets no other script run."""
    assert templates.loader is not None
    sources = (templates.loader.get_source(templates, f"js/{name}.js")[0] for name in SCRIPTS)
    script = "'use strict';\n(() => {\n" + "".join(sources) + "})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    studied = str(run.metrics["study"])
    reference = str(run.metrics["baseline"] or studied)
    attention = attention_of_cases(run.directory)
    data = cases.payload(run, studied=studied, reference=reference, attention=attention)
    # Not escaped again: the script is this package's own, and as_script leaves no sign that could end its element.
    return {
        "examples": examples.examples(run, studied=studied, reference=reference, attention=attention),
        "data": Markup(cases.as_script(data)),
        "script": Markup(script),
        "script_hash": f"sha256-{digest}",
    }


def _figures(run: SavedRun) -> dict[str, dict[str, str] | None]:
    """Draw the figures into figures/, and return them as data URIs; None is a figure that could not be drawn."""
    drawn: dict[str, dict[str, str] | None] = {}
    for name, drawing in figures.drawings(run).items():
        path, drawn[name] = run.directory / "figures" / f"{name}.svg", None
        path.unlink(missing_ok=True)  # that of an earlier report
        missing = f"the figure {path.name} was not drawn"
        with analyses.guarded(run.directory, f"figure_{name}", missing, part_of=analyses.REPORT):
            svg = figures.svg_bytes(drawing.draw())
            drawn[name] = figures.embedded(name, svg, alt=drawing.words, caption=drawing.caption)
            _write(path, svg)
    return drawn


def _write(path: Path, content: bytes) -> Path:
    """Write whole or not at all: an interrupted rebuild leaves the old report."""
    try:
        with atomic_write(path) as draft:
            draft.write_bytes(content)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); the report is written next to the run's files; make the "
            "directory writable or copy the run elsewhere"
        ) from None
    return path
