"""What the template of the report prints, from a run's files. No HTML is written here."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.metrics.claims import HIGHER, LOWER, NOT_TESTED, SMALL
from experiments.report import arms
from experiments.report.next_commands import next_commands
from experiments.report.saved_run import SavedRun
from experiments.report.tables import SIGNS
from experiments.report.text import summary
from experiments.runs.provenance import arm_title, model_title, sides_of
from experiments.runs.results_table import Row
from interp.checkpoints.config import ORGANISM

UNKNOWN = "not recorded"
TOYS = {  # bundled model → what it is
    "llava": "a toy built to over-refuse; its numbers say nothing of real models",
    "smol": "a small model made here; its numbers say nothing of larger models",
    "thinking": "a toy taught to think before it answers; its numbers say nothing of real models",
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
    toy = str(model.get("path") or "").removeprefix(ORGANISM) if str(model.get("path")).startswith(ORGANISM) else ""
    question = _question(environment, studied, compared=bool(base) and studied != base)
    names = arms.arms_of(results, design)
    return {
        "question": question,
        "headline": words.headline,
        "notes": words.notes,
        "measures": headline_measures(run),
        "subject": model_title(model) if model else "the model",
        "bundled": TOYS.get(toy, TOYS["llava"]) if toy else "",
        "about": f"{benchmark.get('name') or 'the benchmark'}, {benchmark.get('n', UNKNOWN)} cases, asked in "
        + (f"{len(names)} ways" if len(names) > 1 else "one way"),
        "before": base or studied,
        "rates_before": [results.get(base or studied, **key) for key in arms.RATES[design["kind"]].values()],
        "commands": next_commands(environment, str(run.directory), refusals=design["kind"] == "refusal"),
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
    """Return what the run was, by name: model, benchmark, judge, seed, code, machine, command, cost."""
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
        *(("cost", sentence) for sentence in cost_sentences(environment.get("cost") or {})),
        *((f"run of {name}", str(folder)) for name, folder in (environment.get("joined") or {}).items()),
    ]


def cost_sentences(cost: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return what arms cost that ask questions before their answers, next to the baseline."""
    sentences = []
    for arm, spent in ((arm, spent) for arm, spent in cost.items() if spent.get("steps")):
        questions, tokens, seconds = (spent[name] / spent["cases"] for name in ("steps", "step_tokens", "seconds"))
        plain = cost.get("baseline")
        times = "" if plain is None else f", {seconds / plain['seconds'] * plain['cases']:.1f} times the baseline's"
        sentences.append(f"{arm}: {questions:.2g} questions a case before its answer, {tokens:.1f} tokens; "
                         f"{seconds:.3g} s a case{times}.")  # fmt: skip
    return sentences


def _joined(*values: Any) -> str:
    return " · ".join(dict.fromkeys(str(entry) for entry in values if entry not in (None, ""))) or UNKNOWN
