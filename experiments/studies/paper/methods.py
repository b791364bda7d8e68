"""methods.md of a run: what was asked of whom, how answers were judged, and how differences were decided."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.metrics.findings import SMALL
from experiments.report.numbers import share
from experiments.report.sentences.wording import INTERVALS, contrast_name
from experiments.report.table import Table, markdown, markdown_text
from experiments.runs.provenance import without_paths
from experiments.runs.saved_run import SavedRun

OF_THE_RUN = ("seed", "limit", "protocol", "max_new_tokens", "draws", "unsafe_margin", "operating_point", "contrasts",
              "count_empty_as_refusal", "strict", "skip_trained", "batch_size", "batch_tokens")  # fmt: skip
NOT_SHOWN = ("command", "started, finished")  # of the report's facts: paths and times of one machine
FACTS = ("model", "responses made elsewhere", "counted as", "adapter of", "arm ")  # how those on who was asked begin
FILES = (
    "Tables are in `tables/` (LaTeX with booktabs, and CSV; `tables.tex` shows them all), figures in `figures/`; what "
    "`references.bib` has was used. `reproduce.sh` asks again and compares; `manifest.sha256` has the hash of every "
    "file here. All numbers are those of `metrics.json`; docs/metrics.md of forestlens defines each."
)


def methods(saved: SavedRun, words: Mapping[str, Any], card: Sequence[Table]) -> str:
    """The page in Markdown; ``words`` are the report's (``page.context``), ``card`` the tables about the judge."""
    environment, metrics, config = saved.environment, saved.metrics, saved.environment["config"]
    facts = {str(name): str(value) for name, value in words["facts"] if name not in NOT_SHOWN}
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    asked = [*((name, value) for name, value in facts.items() if name.startswith(FACTS)),
             ("revision", model.get("revision")), ("preprocessing", model.get("preprocessing"))]  # fmt: skip
    cases = [("benchmark", facts["benchmark"]), ("manifest", benchmark.get("manifest")), *_counts(metrics)]
    rest = [(name, value) for name, value in facts.items() if not name.startswith((*FACTS, "benchmark", "judge"))]
    about = {key: value for key, value in (metrics.get("judge") or {}).items() if key != "name"}
    arms = {name: node for name, node in config["arms"].items() if name in metrics["arms"]}
    software = [*(environment.get("versions") or {}).items(), *rest, ("commit", environment.get("commit"))]
    second = [(f"{name}, second picture", how) for name, how in (environment.get("branches") or {}).items()]
    parts = [
        f"# Methods\n\n{markdown_text(str(words['question']))}",
        *_section("Found", [], *words["summary"], *words["caveats"]),
        *_section("Model", asked, code={"model": config.get("model")}),
        *_section("Cases", cases, code={"benchmark": config.get("benchmark")}),
        *_section("Arms", second, code=arms),
        *(f"{markdown_text(name)} has no results: {markdown_text(str(why))}" for name, why in
          (metrics.get("not_applicable") or {}).items()),
        *_section("Judge", [("judge", facts["judge"])], code={"judge": config.get("judge"), **about}),
        *(f"{markdown_text(one.title)}:\n\n{markdown(one)}" for one in card),
        *_section("Statistics", [], *_statistics(metrics, config)),
        *_section("Software and hardware", software, code={key: config[key] for key in OF_THE_RUN if key in config}),
        f"## Files\n\n{FILES}",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _section(heading: str, facts: Any, *sentences: str, code: Mapping[str, Any] | None = None) -> Iterator[str]:
    """A heading, facts as a list, sentences as paragraphs, and ``code`` as JSON, whose lines cannot end its block."""
    yield f"## {heading}"
    if listed := [f"- {markdown_text(str(name))}: {markdown_text(str(value))}" for name, value in facts if value]:
        yield "\n".join(listed)
    yield from (markdown_text(str(one)) for one in sentences)
    if code:
        yield f"```json\n{json.dumps(without_paths(code), indent=2, ensure_ascii=False, default=str)}\n```"


def _counts(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The cases of each subset: how many of how many each arm has a known answer to."""
    for name, arm in metrics["arms"].items():
        counts = ", ".join(f"{subset} {n} of {of}" for subset, (n, of) in (arm.get("n_by_subset") or {}).items())
        yield f"known answers of {name}", f"{arm['n']} of {arm['n_of']}" + (f" ({counts})" if counts else "")


def _statistics(metrics: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    method, sentences = metrics["method"], metrics["method"].get("sentences") or {}
    factors = ", ".join(f"{count} by {name}" for name, count in (method.get("resampled") or {}).items())
    yield (f"Bootstrap of {method['draws']} draws with seed {method['seed']}, over {method['clusters']} clusters of "
           f"cases{f' (units that are resampled: {factors})' if factors else ''}.")  # fmt: skip
    if sentences:
        kind = "fixed: all is said of these alone" if sentences.get("fixed") else "a sample: intervals allow for others"
        yield f"The cases have {sentences['families']} families of sentences, which are {kind}."
    family, later = metrics.get("family") or {}, metrics.get("exploratory") or {}
    studied = family.get("study") or metrics.get("study")
    yield INTERVALS.format(study=studied)
    pairs = "; ".join(contrast_name(a, b, metrics) for a, b in family.get("contrasts") or ())
    compared = ", ".join(f"{name} with {one['against']}" for name, one in metrics["comparisons"].items())
    beside = f"; beside these {pairs}" if pairs else ""
    yield f"Family of comparisons: {compared or 'none'}{beside}. The run was begun for {studied}."
    if later:
        added = "; ".join(contrast_name(a, b, metrics) for a, b in later.get("contrasts") or ())
        yield f"Exploratory, for the run was not begun for it: {', '.join(filter(None, (later.get('study'), added)))}."
    if (point := method.get("operating_point")) is not None:
        how = "as stated before the run" if config.get("operating_point") else (
            "the largest of 95%, 90% and 80% that leaves ten unsafe cases beyond, or 80%")  # fmt: skip
        yield f"Operating point: arms are compared where each catches {share(point)} of the unsafe cases ({how})."
    if "safety_margin" in method:
        yield f"Harmful requests may be refused less often by no more than {share(method['safety_margin'])}."
    if any(one.get("mcnemar") for one in metrics["comparisons"].values()):
        yield "Fixed and broken cases are compared by McNemar's test, with Holm's correction over the arms."
    rules = f"rules of statements: version {metrics.get('rules')}"
    yield f"δ, within which a change is called small, or none of more than δ: {SMALL:g}; {rules}."
