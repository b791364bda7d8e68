"""What the template of the report prints, from a run's files. No HTML is written here."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.metrics.claims import HIGHER, INCONCLUSIVE, LOWER, NO_DIFFERENCE, NOT_TESTED, SMALL, TOO_FEW
from experiments.report import arms, published_tables
from experiments.report.next_commands import next_commands
from experiments.report.numbers import share
from experiments.report.text import ends, summary
from experiments.runs.provenance import arm_title, model_title, sides_of
from experiments.runs.results_table import Row
from experiments.runs.saved_run import SavedRun
from interp.checkpoints.config import ORGANISM

UNKNOWN = "not recorded"
TOYS = {  # bundled model → what it is
    "llava": "a toy built to over-refuse; its numbers say nothing of real models",
    "smol": "a small model made here; its numbers say nothing of larger models",
    "thinking": "a toy taught to think before it answers; its numbers say nothing of real models",
}
MEANING = {  # of a claim about the headline
    HIGHER: "The interval lies above 0.",
    LOWER: "The interval lies below 0.",
    NO_DIFFERENCE: "The difference is at most 2 points.",
    INCONCLUSIVE: "There may be a difference or none: these cases do not decide.",
    TOO_FEW: "There are too few cases for a claim.",
}
ICONS = {HIGHER: "up", LOWER: "down", NO_DIFFERENCE: "level", INCONCLUSIVE: "open", TOO_FEW: "few"}
HEADLINES = {  # kind → title, key, and whether a higher value is wanted
    "yes_no": [
        ("harmless requests answered, at equal strictness", {"quantity": arms.AT_POINT}, True),
        ("harmless requests answered", {"quantity": "harmless_answered"}, True),
        ("unsafe requests caught", {"quantity": "unsafe_caught"}, True),
    ],
    "refusal": [
        ("harmless requests refused", {"quantity": "refusal_rate", "subset": "benign"}, False),
        ("harmful requests refused", {"quantity": "refusal_rate", "subset": "contrast"}, True),
    ],
}  # fmt: skip


WRONG = {  # kind → key of a rate, words before and after it, and whether the rest of 100% is meant
    "yes_no": [
        ({"quantity": "harmless_answered"}, "calls", "of harmless requests unsafe", True),
        ({"quantity": "unsafe_caught"}, "misses", "of unsafe ones", True),
    ],
    "refusal": [
        ({"quantity": "refusal_rate", "subset": "benign"}, "refuses", "of harmless requests", False),
        ({"quantity": "refusal_rate", "subset": "contrast"}, "answers", "of harmful ones", True),
    ],
}


class Measure(NamedTuple):
    """One quantity of the first screen: its levels by arm, and the difference between the two."""

    title: str
    bars: list[tuple[str, Row]]
    difference: Row | None = None
    more: bool = True  # a higher value is wanted

    @property
    def tone(self) -> str:
        """The colour: good, bad, or flat for neither."""
        claim = self.difference.claim if self.difference else ""
        return {HIGHER: "good" if self.more else "bad", LOWER: "bad" if self.more else "good"}.get(claim, "flat")

    @property
    def claim(self) -> str:
        """The claim in words."""
        claim = self.difference.claim if self.difference else ""
        return claim or NOT_TESTED

    @property
    def icon(self) -> str:
        """The name of the claim's drawing."""
        return ICONS.get(self.claim, "none")

    @property
    def meaning(self) -> str:
        """The claim as a sentence."""
        return MEANING.get(self.claim, "Nothing is claimed.")

    @property
    def interval(self) -> str:
        """The interval of the difference with its name, or ""."""
        return ends(self.difference, name=True).strip("[]") if self.difference and self.difference.interval else ""

    def place(self, difference: float) -> float:
        """Return where ``difference`` lies on an axis from 0 to 360 with 0 in its middle."""
        assert self.difference is not None
        reach = 1.1 * max(3 * SMALL, abs(self.difference.value or 0), *map(abs, self.difference.interval or ()))
        return 180 * (1 + difference / reach)


def context(run: SavedRun) -> dict[str, Any]:
    """Return everything the template names, except the figures."""
    design, results, environment = run.metrics, run.results, run.environment
    studied, base = str(design["study"]), design["baseline"]
    said, measures = summary(results, design, environment), headline_measures(run)
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    toy = str(model.get("path") or "").removeprefix(ORGANISM) if str(model.get("path")).startswith(ORGANISM) else ""
    question = _question(
        environment, studied, compared=bool(base) and studied != base, refusals=design["kind"] == "refusal"
    )
    names = arms.arms_of(results, design)
    return {
        "title": f"forestlens: {question}",
        "question": question,
        "headline": said.headline,
        "notes": said.notes,
        "measures": measures,
        "subject": model_title(model) if model else "the model",
        "bundled": TOYS.get(toy, TOYS["llava"]) if toy else "",
        "about": f"{benchmark.get('name') or 'the benchmark'}, {benchmark.get('n', UNKNOWN)} cases, asked in "
        + (f"{len(names)} ways" if len(names) > 1 else "one way"),
        "wrong": wrong(run, base or studied),
        "commands": next_commands(environment, str(run.directory), refusals=design["kind"] == "refusal"),
        "facts": facts(environment),
        "studied": studied,
        "refusal": design["kind"] == "refusal",
        "compared": bool(base) and len(names) > 1,
        "tables": arms.all_tables(results, design),
        "published": published_tables.beside_published(run),
        "environment_text": json.dumps(environment, indent=2, ensure_ascii=False, default=str),
    }


def headline_measures(run: SavedRun) -> list[Measure]:
    """Return the quantities of the first screen: the headline, or both rates if it does not exist."""
    design, results = run.metrics, run.results
    studied, base = str(design["study"]), design["baseline"]
    measures = []
    for title, key, more in HEADLINES[design["kind"]]:
        named = [name for name in dict.fromkeys((base, studied)) if name]
        bars = [(name, row) for name in named if (row := results.get(name, **key)) and row.value is not None]
        difference = results.get(studied, against=base, **key) if base and studied != base else None
        if key["quantity"] == arms.AT_POINT:
            if difference and difference.claim in MEANING and len(bars) == 2:
                return [Measure(title, bars, difference, more)]
            continue
        if bars:
            measures.append(Measure(title, bars, difference, more))
    return measures


def wrong(run: SavedRun, arm: str) -> str:
    """Return what the arm gets wrong, in one sentence; "" without answers."""
    parts = []
    for key, before, after, opposite in WRONG[run.metrics["kind"]]:
        row = run.results.get(arm, **key)
        if row and row.n:
            rate = row.value or 0
            parts.append(f"{before} {share(1 - rate if opposite else rate)} {after}")
    return f"{arm} {' and '.join(parts)}." if parts else ""


def _question(environment: Mapping[str, Any], studied: str, *, compared: bool, refusals: bool) -> str:
    model, answered = model_title(environment.get("model")), sides_of(environment.get("model"), studied)
    studied = arm_title(environment.get("model"), studied)
    benchmark = (environment.get("benchmark") or {}).get("name") or "the benchmark"
    if environment.get("joined"):
        return f"Which arm of {model} best separates safe from unsafe on {benchmark}?"
    if answered and compared:
        return f"How well do {' and '.join(answered)} separate safe from unsafe on {benchmark}?"
    alone = answered[0] if answered else f"{model} ({studied})"
    if refusals and compared:
        return f"Does {studied} make {model} refuse fewer harmless requests of {benchmark} and no fewer harmful ones?"
    if refusals:
        return f"How often does {alone} refuse harmless and harmful requests of {benchmark}?"
    if compared:
        return f"Does {studied} help {model} on {benchmark}?"
    return f"How well does {alone} separate safe from unsafe on {benchmark}?"


def facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the run was, by name: model, benchmark, judge, seed, code, machine, command, cost."""
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    commit = str(environment.get("commit") or UNKNOWN)[:12]
    if environment.get("dirty"):
        commit += ", with uncommitted changes"
    missing = benchmark.get("missing") or 0
    absent = missing if isinstance(missing, int) else len(missing)
    count = f"{benchmark.get('n', UNKNOWN)} cases" + (f", {absent} published cases cannot run here" if absent else "")
    about = (model_title(model) if model else None, model.get("path"), _short("revision", model.get("revision")),
             model.get("dtype"))  # fmt: skip
    return [
        ("responses made elsewhere" if model.get("made_elsewhere") else "model", _joined(*about)),
        *((f"counted as {kind}", ", ".join(texts)) for kind, texts in (model.get("answers_counted") or {}).items()),
        *((f"adapter of {arm}", revision) for arm, revision in (model.get("adapters") or {}).items()),
        *((f"arm {arm}", model_title(responses)) for arm, responses in (model.get("responses") or {}).items()),
        ("benchmark", _joined(benchmark.get("name"), count, _short("manifest", benchmark.get("manifest")))),
        ("judge", _known(environment.get("judge"))),
        ("seed", _known(environment.get("seed"))),
        ("code", commit),
        ("machine", _joined(environment.get("device"), _threads(environment.get("threads")))),
        ("started, finished", f"{_known(environment.get('started'))}, {_known(environment.get('finished'))}"),
        ("command", _known(environment.get("command"))),
        *(("cost", sentence) for sentence in cost_sentences(environment.get("cost") or {})),
        *((f"run of {name}", str(folder)) for name, folder in (environment.get("joined") or {}).items()),
    ]


def cost_sentences(cost: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return what arms cost that ask questions before their answers, next to the baseline."""
    sentences = []
    for arm, own in cost.items():
        if not own.get("steps"):
            continue
        questions, tokens, seconds = (own[name] / own["cases"] for name in ("steps", "step_tokens", "seconds"))
        plain = cost.get("baseline")
        times = "" if plain is None else f", {seconds / plain['seconds'] * plain['cases']:.1f} times the baseline's"
        sentences.append(f"{arm}: {questions:.2g} questions a case before its answer, {tokens:.1f} tokens; "
                         f"{seconds:.3g} s a case{times}.")  # fmt: skip
    return sentences


def _known(entry: Any) -> str:
    return UNKNOWN if entry is None or entry == "" else str(entry)


def _joined(*values: Any) -> str:
    return " · ".join(dict.fromkeys(str(entry) for entry in values if entry not in (None, ""))) or UNKNOWN


def _short(name: str, digest: Any) -> str | None:
    return None if not digest else f"{name} {str(digest)[:12]}"


def _threads(threads: Any) -> str | None:
    return None if threads is None else f"{threads} thread{'' if threads == 1 else 's'}"
