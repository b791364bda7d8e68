"""Build one self-contained report.html from a run's directory. Reads only that directory, and no model."""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from experiments.metrics.estimates import HIGHER, LOWER, NOT_TESTED, SMALL
from experiments.report import arms, figures
from experiments.report.cases import address, as_script, attention_of_cases, examples, payload
from experiments.report.saved_run import SavedRun, read_run
from experiments.report.sections import REPORT, attention_section, guarded, missing_analyses, read_sections
from experiments.report.tables import SIGNS, copies, count, ends, level, lines_of, percent, share, summary, value
from experiments.report.terminal import next_commands
from experiments.runs.record_fields import arm_title, model_title, sides_of
from experiments.runs.results_table import Row
from interp.atomic import atomic_write
from interp.checkpoints.config import ORGANISM
from interp.errors import UserError

# In the order in which they need each other.
SCRIPTS = ("elements", "data", "list", "picture", "attention", "labels", "case", "tables", "main")
UNKNOWN = "not recorded"
TOYS = {  # bundled model → what it is
    "llava": "a toy built to over-refuse; its numbers say nothing of real models",
    "smol": "a small model made here; its numbers say nothing of larger models",
    "thinking": "a toy taught to think before it answers; its numbers say nothing of real models",
}


def toy_of(model: Mapping[str, Any]) -> str:
    """Return what a bundled model is; "" for other models. ``model`` is the entry of environment.json."""
    path = str(model.get("path") or "")
    return TOYS.get(path.removeprefix(ORGANISM), TOYS["llava"]) if path.startswith(ORGANISM) else ""


class Measure(NamedTuple):
    """One quantity of the first screen: its levels by arm, and the difference between the two."""

    title: str
    bars: list[tuple[str, Row]]
    difference: Row | None = None
    more: bool = True  # a higher value is wanted

    @property
    def tone(self) -> str:
        """The colour: good, bad, or flat for neither."""
        wanted = HIGHER if self.more else LOWER
        return "flat" if self.claim not in (HIGHER, LOWER) else "good" if self.claim == wanted else "bad"

    @property
    def claim(self) -> str:
        """The claim in words."""
        return (self.difference.claim if self.difference else "") or NOT_TESTED

    @property
    def sign(self) -> str:
        """The claim's sign."""
        return SIGNS[self.claim]

    def position(self, difference: float) -> float:
        """Return where ``difference`` lies on an axis from 0 to 360 with 0 in its middle."""
        assert self.difference is not None
        reach = 1.1 * max(3 * SMALL, abs(self.difference.value or 0), *map(abs, self.difference.interval or ()))
        return 180 * (1 + difference / reach)


def context(run: SavedRun) -> dict[str, Any]:
    """Return everything the template names, except the figures."""
    design, results, environment = run.metrics, run.results, run.environment
    studied, base = str(design["study"]), design["baseline"]
    words = summary(results, design, environment)
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    question = _question(environment, studied, compared=bool(base) and studied != base)
    names = arms.arms_of(results, design)
    return {
        "question": question,
        "headline": words.headline,
        "notes": words.notes,
        "measures": headline_measures(run),
        "subject": model_title(model) if model else "the model",
        "bundled": toy_of(model),
        "about": f"{benchmark.get('name') or 'the benchmark'}, {benchmark.get('n', UNKNOWN)} cases, "
        + (f"{len(names)} arms" if len(names) > 1 else "one arm"),
        "before": base or studied,
        "rates_before": [results.get(base or studied, **key) for key in arms.RATES[design["kind"]].values()],
        "commands": next_commands(environment, str(run.directory)),
        "facts": facts(environment),
        "studied": studied,
        "refusal": design["kind"] == "refusal",
        "tables": arms.all_tables(results, design),
        "environment_text": json.dumps(environment, indent=2, ensure_ascii=False, default=str),
    }


def headline_measures(run: SavedRun) -> list[Measure]:
    """Return the quantities of the first screen: the headline, or both rates if nothing is claimed of it."""
    design, results = run.metrics, run.results
    studied, base = str(design["study"]), design["baseline"]

    def measure(title: str, key: Mapping[str, str]) -> Measure:
        named = [name for name in dict.fromkeys((base, studied)) if name]
        bars = [(name, row) for name in named if (row := results.get(name, **key)) and row.value is not None]
        difference = results.get(studied, against=base, **key) if base and studied != base else None
        return Measure(title, bars, difference, more=title != "harmless requests refused")

    first = measure("harmless requests answered, at equal strictness", {"quantity": arms.AT_POINT})
    if first.claim != NOT_TESTED and len(first.bars) == 2:
        return [first]
    return [each for title, key in arms.RATES[design["kind"]].items() if (each := measure(title, key)).bars]


def _question(environment: Mapping[str, Any], studied: str, *, compared: bool) -> str:
    model, answered = model_title(environment.get("model")), sides_of(environment.get("model"), studied)
    method = arm_title(environment.get("model"), studied)
    benchmark = (environment.get("benchmark") or {}).get("name") or "the benchmark"
    if environment.get("joined"):
        return f"Which arm of {model} best separates safe from unsafe on {benchmark}?"
    if compared and not answered:
        return f"Does {method} help {model} on {benchmark}?"
    who = " and ".join(answered if compared else answered[:1]) or f"{model} ({method})"
    return f"How well {'do' if compared else 'does'} {who} separate safe from unsafe on {benchmark}?"


def facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the run was, by name: model, benchmark, judge, seed, code, machine, command."""
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    commit = str(environment.get("commit") or UNKNOWN)[:12]
    if environment.get("dirty"):
        commit += ", with uncommitted changes"
    missing = benchmark.get("missing") or 0
    absent = missing if isinstance(missing, int) else len(missing)
    count = f"{benchmark.get('n', UNKNOWN)} cases" + (f", {absent} published cases cannot run here" if absent else "")
    return [
        (
            "responses made elsewhere" if model.get("made_elsewhere") else "model",
            _joined(model_title(model) if model else "", model.get("path"), model.get("dtype")),
        ),
        ("model revision", _joined(model.get("revision"))[:12]),
        *((f"counted as {kind}", ", ".join(texts)) for kind, texts in (model.get("answers_counted") or {}).items()),
        *((f"adapter of {arm}", revision) for arm, revision in (model.get("adapters") or {}).items()),
        *((f"arm {arm}", model_title(responses)) for arm, responses in (model.get("responses") or {}).items()),
        ("benchmark", _joined(benchmark.get("name"), count)),
        ("benchmark manifest", _joined(benchmark.get("manifest"))[:12]),
        *((name, _joined(environment.get(name))) for name in ("judge", "seed", "command")),
        ("machine", _joined(environment.get("device"))),
        ("threads", _joined(environment.get("threads"))),
        ("code", commit),
        ("started, finished", f"{_joined(environment.get('started'))}, {_joined(environment.get('finished'))}"),
        *((f"run of {name}", str(folder)) for name, folder in (environment.get("joined") or {}).items()),
    ]


def _joined(*values: Any) -> str:
    return " · ".join(dict.fromkeys(str(entry) for entry in values if entry not in (None, ""))) or UNKNOWN


def build(run_dir: Path) -> Path:
    """Draw the run's figures, write its report.html, and return the latter's path.

    Reads results.csv, metrics.json, environment.json, predictions.jsonl, thumbnails/ and, if they exist,
    attention.json, sections/ and missing.json. Writes figures/ and report.html. The same files give the same bytes.
    A figure that cannot be drawn is left out, and a sentence says so (``experiments.report.sections``).

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
        **context(run),
        colours=figures.css(),
        small=SMALL,
        figures=[figure for figure in drawn.values() if figure],
        attention=attention,
        sections=read_sections(run_dir),
        missing=missing_analyses(run_dir),
        **_browser(run, templates),
    )


@cache
def _templates() -> Environment:
    """Keep the compiled templates for a sweep's next page."""
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
    data = payload(run, studied=studied, reference=reference, attention=attention)
    # Not escaped again: the script is this package's own, and as_script leaves no sign that could end its element.
    return {
        "examples": examples(run, studied=studied, reference=reference, attention=attention),
        "data": Markup(as_script(data)),
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
        with guarded(run.directory, f"figure_{name}", missing, part_of=REPORT):
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
