"""What the template of the report prints, from a run's files. No HTML is written here, and nothing is read."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from experiments.benchmarks.published import PUBLISHED, PublishedRow
from experiments.report import arm_tables, cases, published_tables
from experiments.report.opening import opening
from experiments.runs.provenance import arm_title, model_title, sides_of
from experiments.runs.saved_run import SavedRun

UNKNOWN = "not recorded"
_NO_NAMES: Mapping[str, str] = MappingProxyType({})


def context(run: SavedRun) -> dict[str, Any]:
    """Everything the template names, except the figures."""
    metrics, refusals = run.metrics, run.metrics.get("kind") == "refusal"
    studied = studied_arm(run)
    compared = studied in (metrics.get("comparisons") or {})
    question = _question(run.environment, studied, compared=compared, refusals=refusals)
    return {
        "title": f"forestlens: {question}",
        "question": question,
        "summary": [str(sentence) for sentence in metrics.get("summary") or ()],
        "caveats": [str(sentence) for sentence in metrics.get("caveats") or ()],
        "opening": opening(metrics, run.environment, studied, str(run.directory)),
        "facts": _facts(run.environment),
        "studied": studied,
        **tables({**metrics, "study": studied}, benchmark=_benchmark(run), names=_answered(run)),
        "glance": arm_tables.glance_table({"study": studied, **metrics}),
        "environment_text": json.dumps(run.environment, indent=2, ensure_ascii=False, default=str),
        **_cases(run, studied),
    }


def tables(metrics: Mapping[str, Any], *, benchmark: str = "", names: Mapping[str, str] = _NO_NAMES) -> dict[str, Any]:
    """The tables of a run's metrics as the templates name them, and what is said beside them.

    ``names`` are what answered in arms whose responses were made elsewhere.
    """
    refusals = metrics.get("kind") == "refusal"
    found: dict[str, Any] = {
        "refusal": refusals,
        "glance": arm_tables.glance_table(metrics),
        "arms": arm_tables.arms_table(metrics),
        "outcomes": arm_tables.outcomes_table(metrics),
        "conventions": arm_tables.conventions_table(metrics),
        "against": arm_tables.against(metrics),
        "comparisons": arm_tables.comparisons_table(metrics) if metrics.get("comparisons") else None,
        "remarks": arm_tables.remarks(metrics),
        **(_of_refusals(metrics, benchmark, names) if refusals else _of_verdicts(metrics, benchmark)),
    }
    return found | arm_tables.marks(metrics, [found[name] for name in ("arms", "types") if name in found])


def _of_verdicts(metrics: Mapping[str, Any], benchmark: str) -> dict[str, Any]:
    published = PUBLISHED.get(benchmark, ())
    return {
        "own_subsets": arm_tables.own_subsets_table(metrics),
        "notes": [(name, arm["auroc_note"]) for name, arm in metrics["arms"].items() if arm.get("auroc_note")],
        "contrasts": arm_tables.contrasts_table(metrics),
        "published": published_tables.published_table(metrics, published) if published else None,
    }


def _of_refusals(metrics: Mapping[str, Any], benchmark: str, names: Mapping[str, str]) -> dict[str, Any]:
    counted = metrics.get("as_published") or {}
    return {
        "types": arm_tables.types_table(metrics),
        "tags": arm_tables.tags_table(metrics),
        "pairs": arm_tables.pairs_table(metrics),
        "empty_as_refusal": bool(metrics["method"]["empty_as_refusal"]),
        "published": published_tables.leaderboard_table(metrics, names) if benchmark == "mossbench" else None,
        "as_published": published_tables.as_published_table(metrics, names) if counted else None,
        "as_published_rule": counted.get("rule", ""),
    }


def published_rows(run: SavedRun) -> Sequence[PublishedRow]:
    """The published rows of the run's benchmark; empty where there are none to compare with."""
    return PUBLISHED.get(_benchmark(run), ())


def _answered(run: SavedRun) -> dict[str, str]:
    """What answered in the arms whose responses were made elsewhere."""
    model = run.environment.get("model") or {}
    return {arm: model_title(one) for arm, one in (model.get("responses") or {}).items()}


def _benchmark(run: SavedRun) -> str:
    return str((run.environment.get("benchmark") or {}).get("name"))


def studied_arm(run: SavedRun) -> str:
    """The arm under study; for a run that names none, the first compared arm, or the only one."""
    names = [
        run.environment.get("arm_under_study"),
        run.metrics.get("study"),
        *(run.metrics.get("comparisons") or {}),
        *run.metrics["arms"],
    ]
    return next(str(name) for name in names if name in run.metrics["arms"])


def _question(environment: Mapping[str, Any], studied: str, *, compared: bool, refusals: bool) -> str:
    model, answered = model_title(environment.get("model")), sides_of(environment.get("model"), studied)
    studied = arm_title(environment.get("model"), studied)
    benchmark = (environment.get("benchmark") or {}).get("name") or "the benchmark"
    if environment.get("joined"):
        apart = "harmless requests from harmful ones" if refusals else "safe from unsafe"
        return f"Which arm of {model} best tells {apart} on {benchmark}?"
    if answered and compared:
        apart = "harmful requests from harmless ones" if refusals else "safe from unsafe"
        return f"How well do {' and '.join(answered)} tell {apart} on {benchmark}?"
    alone = answered[0] if answered else f"{model} ({studied})"
    if refusals and compared:
        return f"Does {studied} make {model} refuse fewer harmless requests of {benchmark} and no fewer harmful ones?"
    if refusals:
        return f"How often does {alone} refuse harmless and harmful requests of {benchmark}?"
    if not compared:
        return f"How well does {alone} tell safe from unsafe on {benchmark}?"
    return f"Does {studied} help {model} on {benchmark}?"


def _facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    commit = str(environment.get("commit") or UNKNOWN)[:12]
    if environment.get("dirty"):
        commit += ", with uncommitted changes"
    missing = benchmark.get("missing") or 0
    n_missing = missing if isinstance(missing, int) else len(missing)
    cases = f"{benchmark.get('n', UNKNOWN)} cases"
    cases += f", {n_missing} published cases cannot run here" if n_missing else ""
    return [
        (
            "responses made elsewhere" if model.get("made_elsewhere") else "model",
            _joined(
                model_title(model) if model else None,
                model.get("path"),
                _short("revision", model.get("revision")),
                model.get("dtype"),
            ),
        ),
        *((f"counted as {answer}", ", ".join(found)) for answer, found in (model.get("answers_counted") or {}).items()),
        *((f"adapter of {arm}", revision) for arm, revision in (model.get("adapters") or {}).items()),
        *((f"arm {arm}", model_title(one)) for arm, one in (model.get("responses") or {}).items()),
        ("benchmark", _joined(benchmark.get("name"), cases, _short("manifest", benchmark.get("manifest")))),
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
    """Sentences on what the arms that ask questions before their answers took, beside the baseline."""
    found = []
    for arm, own in cost.items():
        if not own.get("steps"):
            continue
        cases = own["cases"]
        asked, tokens, seconds = (own[name] / cases for name in ("steps", "step_tokens", "seconds"))
        line = f"{arm}: {asked:.2g} questions a case before its answer, {tokens:.1f} tokens; {seconds:.3g} s a case"
        plain = cost.get("baseline")
        relative_cost = (
            "" if plain is None else f", {seconds / plain['seconds'] * plain['cases']:.1f} times the baseline's"
        )
        found.append(f"{line}{relative_cost}.")
    return found


def _known(value: Any) -> str:
    return UNKNOWN if value is None or value == "" else str(value)


def _joined(*values: Any) -> str:
    return " · ".join(dict.fromkeys(str(value) for value in values if value not in (None, ""))) or UNKNOWN


def _short(name: str, digest: Any) -> str | None:
    return None if not digest else f"{name} {str(digest)[:12]}"


def _threads(threads: Any) -> str | None:
    return None if threads is None else f"{threads} thread{'' if threads == 1 else 's'}"


def _cases(run: SavedRun, studied: str) -> dict[str, Any]:
    comparison = (run.metrics.get("comparisons") or {}).get(studied)
    if not comparison:
        return {"cases": [], "flips_sentence": "Nothing to compare: this run has no second arm to set against it."}
    reference = comparison["against"]
    found = cases.flips(run.predictions, arm=studied, reference=reference)
    chosen = cases.choose(found, arm=studied)
    n_fixed = sum(flip.fixed for flip in found)
    sentence = (
        f"Against {reference}, {studied} fixed {n_fixed} scored cases (wrong to right) and broke "
        f"{len(found) - n_fixed}. The list holds every case; below it stand "
        + (f"{len(chosen)} of the flipped ones" if len(chosen) < len(found) else "the flipped ones")
        + " to read on paper"
        + (", largest changes of margin first, the subsets taking turns." if len(chosen) < len(found) else ".")
        if found
        else f"No case changed between right and wrong from {reference} to {studied}."
    )
    return {"cases": [cases.shown_case(run, flip, studied) for flip in chosen], "flips_sentence": sentence}
