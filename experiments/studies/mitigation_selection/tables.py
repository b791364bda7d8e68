"""A finished run → ``mitigations.json``, ``mitigations.md``, a figure and a section of its report: all arms together.

Rates come from the run's metrics.json. Every arm is compared with the baseline and with the rivals (VCD above all) at
once, so that the intervals of all these differences hold together: of many arms one would seem better by chance.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import RenderableType

from experiments.evaluation.study import Study
from experiments.metrics.findings import Answer, Finding, plain, stated
from experiments.metrics.yes_no.comparison import ALL, comparisons
from experiments.metrics.yes_no.findings import WINS
from experiments.metrics.yes_no.quantities import ORDERED, RANKED, YesNoArms
from experiments.metrics.yes_no.shift_curve import shift_curve
from experiments.report.figures import trade_off
from experiments.report.numbers import fixed, percent
from experiments.report.sections import Section, SectionFigure, write_section
from experiments.report.sentences import mitigation_selection as sentences
from experiments.report.sentences.wording import deciding
from experiments.report.table import Cell, Column, Narrow, Table, change, markdown, number, rate, terminal
from experiments.runs.resumption import read_object, write_json
from experiments.runs.saved_run import read_run
from experiments.studies.mitigation_selection.candidates import setting_name

RESULT = "mitigations.json"
KEPT = ("accuracy", "intervals", "matched_over_safety", "auroc", "flip_rate", "d_prime", "n", "n_of")
TITLE = "Mitigations beside each other"
NOTE = (
    "Rates in percent, 95% intervals. Chosen: setting and constant (shift, in logits on the Yes/No margin) with the "
    "highest balanced accuracy on the development split among those that lose no more unsafe accuracy there than "
    "unsafe_margin allows; nothing was chosen on the cases shown. threshold is the untouched model with a constant "
    "chosen by that rule. matched: over-safety accuracy at the operating point, which no constant changes. Δ: paired "
    "difference from that arm's; beside it the simultaneous interval, which holds for all these differences at once."
)


def conclude(work: Study, rivals: Sequence[str], familiar: Mapping[str, int]) -> list[RenderableType]:
    """Writes the result, the table and the figure of a run, adds them to its report, and returns what to print.

    ``rivals`` are the arms that every other is compared with, the baseline first; ``familiar`` counts the templates of
    these cases that the development split has as well (``seen``, ``of``).
    """
    run, folder = work.run, work.store.path
    saved, choice = read_run(folder), read_object(folder / "choice.json")
    result = evaluate(saved.predictions, saved.metrics, choice, rivals=rivals, seed=run.seed, draws=run.draws)
    result["learned"] = [name for name, one in choice.items() if one.get("learned")]
    result["familiar"] = familiar
    result["methods"] = {name: repr(method) for name, method in run.arms.items()}
    result["summary"] = sentences.summary(result)
    write_json(folder / RESULT, result)
    shown = table(result)
    page = "\n".join([*result["summary"], "", markdown(shown), "", NOTE])
    (folder / "mitigations.md").write_text(page + "\n", encoding="utf-8")
    caption = "Above the line: more than any constant on the baseline’s margin can do. Bars are 95% intervals."
    figure = SectionFigure(trade_off(result, curve=result["shift_curve"]), sentences.figure(result), caption)
    section = Section(TITLE, result["summary"], [shown], note=NOTE)
    write_section(folder, "mitigations", section, {"mitigations": figure})
    return [terminal(shown), *result["summary"], f"table: {folder / 'mitigations.md'}"]


def evaluate(
    predictions: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    choice: Mapping[str, Any],
    *,
    rivals: Sequence[str],
    seed: int,
    draws: int,
) -> dict[str, Any]:
    """The contents of ``mitigations.json``: every arm, the shift curve, the best arm and the findings.

    ``versus`` holds the paired differences from each rival, by quantity. ``best`` is the arm of those chosen here that
    answers most harmless requests at the operating point. No arm is the one under study, so that every win is by
    the simultaneous interval.
    """
    point = metrics["method"]["operating_point"]
    asked = YesNoArms.of(pd.DataFrame(predictions), draws=draws, seed=seed, stated=point)
    cases, answers = asked.cases, asked.answers
    rivals = [name for name in rivals if name in answers]
    contrasts = [*((ALL, rival) for rival in rivals[1:]), *metrics["method"].get("contrasts", ())]
    control = metrics["method"]["control"]
    compared = comparisons(asked, baseline=rivals[0], control=control, study="", contrasts=contrasts, said=ORDERED)
    arms: dict[str, Any] = {}
    for name in answers:
        block, one = metrics["arms"][name], compared.get(name)
        wins = next((kept for kept in one["findings"] if kept["question"] == WINS), None) if one else None
        arms[name] = {
            **{key: block[key] for key in KEPT},
            "chosen": choice.get(name, {}).get("chosen"),
            "versus": {rivals[0]: one["delta"], **one["versus"]} if one else {},
            "wins": bool(one and one["wins"]),
            "decided": wins["evidence"]["decided"] if wins else None,
        }
    counted = asked.reading(rivals[0]).margins
    over_safety, unsafe = shift_curve(
        answers[rivals[0]].margin[counted], cases.unsafe[counted], counted[counted].astype(float)
    )
    picked = [name for name in arms if choice.get(name)]
    method = {
        "seed": seed,
        "draws": draws,
        "clusters": cases.clusters,
        "sentences": metrics["method"]["sentences"],
    }
    result: dict[str, Any] = plain(
        {
            "kind": "mitigations",
            "rivals": rivals,
            "arms": arms,
            "shift_curve": [{"over_safety": s, "unsafe": u} for s, u in zip(over_safety, unsafe, strict=True)],
            "best": max(picked, key=lambda name: _matched(arms[name]), default=None),
            "method": method,
        }
    )
    result["findings"] = [finding.as_json() for quantity in RANKED for finding in above_rivals(result, quantity)]
    return result


def _matched(arm: Mapping[str, Any]) -> float:
    return arm["matched_over_safety"]["value"] if arm["matched_over_safety"] else 0.0


def above_rivals(result: Mapping[str, Any], quantity: str) -> list[Finding]:
    """Of every arm that is no rival: did ``quantity`` rise above every rival's, by the simultaneous intervals?"""
    found = []
    for name, arm in result["arms"].items():
        if name not in result["rivals"]:
            deltas = {rival: arm["versus"].get(rival, {}).get(quantity) for rival in result["rivals"]}
            statements = {rival: stated(delta) for rival, delta in deltas.items()}
            answer = Answer.ROSE if all(one is Answer.ROSE for one in statements.values()) else Answer.NOT_SHOWN
            found.append(Finding(f"{quantity} above every rival", answer, {quantity: deltas}, name))
    return found


def table(result: Mapping[str, Any]) -> Table:
    """Every arm with its chosen setting; a terminal shows no settings, and no differences in AUROC."""
    rivals = result["rivals"]
    columns = [
        Column("arm", "left", fold=13),
        Column("chosen", "left", narrow=Narrow.NOTHING),
        Column("matched"),
        *(Column(f"Δ matched, {rival}", short=f"Δ from\n{rival}",
                 narrow=Narrow.TERSE if rival in (rivals[0], rivals[-1]) else Narrow.NOTHING) for rival in rivals),
        Column("AUROC", narrow=Narrow.VALUE),
        *(Column(f"Δ AUROC, {rival}", narrow=Narrow.NOTHING) for rival in rivals),
        Column("unsafe"),
        Column("over-safety", short="over-\nsafety"),
        Column("overall", narrow=Narrow.VALUE),
        Column("flips", narrow=Narrow.NOTHING),
        Column("wins"),
    ]  # fmt: skip
    rows = [_row(name, arm, rivals) for name, arm in result["arms"].items()]
    return Table.of("Every arm on the same test cases.", rows, columns=columns)


def _row(name: str, arm: Mapping[str, Any], rivals: Sequence[str]) -> dict[str, str | Cell]:
    accuracy, intervals, matched = arm["accuracy"], arm["intervals"], arm["matched_over_safety"]
    versus = {rival: arm["versus"].get(rival, {}) for rival in rivals}
    return {
        "arm": name,
        "chosen": _chosen(arm["chosen"]),
        "matched": rate(matched["value"], matched["interval"]) if matched else "–",
        **{f"Δ matched, {rival}": _difference(versus[rival].get("matched_over_safety")) for rival in rivals},
        "AUROC": number(arm["auroc"], intervals["auroc"], 3),
        **{f"Δ AUROC, {rival}": _difference(versus[rival].get("auroc"), digits=3) for rival in rivals},
        "unsafe": rate(accuracy["unsafe"], intervals["unsafe"]),
        "over-safety": rate(accuracy["over_safety"], intervals["over_safety"]),
        "overall": rate(accuracy["overall"], intervals["overall"]),
        "flips": percent(arm["flip_rate"]),
        "wins": "yes" if arm["wins"] else "no",
    }


def _difference(entry: Mapping[str, Any] | None, *, digits: int | None = None) -> Cell:
    """A difference with the interval that decides of one arm among many."""
    return change(entry and deciding(entry), digits=digits)


def _chosen(chosen: Mapping[str, Any] | None) -> str:
    if not chosen:
        return "–"
    shift = f"shift {fixed(chosen['shift'], 2, sign=True)}" if chosen["shift"] else ""
    return ", ".join(filter(None, [setting_name(chosen["setting"]), shift])) or "as it is"
