"""``task=judge_validation``: how far refusal judges agree with people's labels of XSTest's and MSTS's answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from rich.console import Console

from experiments.benchmarks.labelled_answers import CLASSES, Labelled, label_of, read_labelled
from experiments.config import Run
from experiments.judges.refusal_classifier import RefusalClassifier, unfit
from experiments.judges.refusal_phrases import RefusalRule
from experiments.metrics.judge_error import agreement, kappa
from experiments.report.tables import fixed, in_terminal, say, span, table
from experiments.runs.store import open_run
from experiments.studies.refusal_judges.training import CrossValidation
from experiments.types import Judge, Verdict
from interp.errors import UserError


@dataclass(frozen=True)
class JudgeCard:
    """The task. ``root`` names a clone of XSTest or MSTS, or both. It also measures a judge that the run names."""

    root: Any = None

    def __call__(self, run: Run) -> None:
        """Write judge_card.json into a run directory, and print its table.

        Raises:
            UserError: no labelled answers in ``root``, or the run's judge does not read refusals.
        """
        if run.judge_named and run.judge.kind != "refusal":
            raise UserError(f"judge {run.judge.name} reads {run.judge.kind} answers, and the labels are of refusals; "
                            "choose a refusal judge or none")  # fmt: skip
        rows, others = read_labelled(self.root)
        settings: dict[str, Any] = {"seed": run.seed, "draws": run.draws}
        with Console().status("Training the classifier without each team of models and fold of requests"):
            judges = offline_judges(rows, others, **settings)
        if run.judge_named and run.judge.name not in judges:
            scores = measured(rows, judged_by(run.judge, rows), **settings)
            judges[run.judge.name] = scores | by_language(run.judge, others, **settings)
        card = {"title": TITLE, "method": METHOD, "attribution": ATTRIBUTION,
                **settings, "judges": judges, "annotators": annotators(rows, **settings)}  # fmt: skip
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            path = store.path / "judge_card.json"
            path.write_text(f"{_lines(card)}\n", encoding="utf-8")
            store.finish()
        tables = [in_terminal(table(rows, title=title)) for title, rows in card_tables(card).items()]
        say(TITLE, *tables, METHOD, ATTRIBUTION, f"judge card: {path}")


def _lines(value: Any, indent: str = " ") -> str:
    """Return JSON with one line for each object that holds no other object."""
    if not isinstance(value, dict) or not any(isinstance(part, dict) for part in value.values()):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    parts = (f"{indent}{json.dumps(name)}: {_lines(part, indent + ' ')}" for name, part in value.items())
    return "{\n" + ",\n".join(parts) + f"\n{indent[1:]}}}"


FEWEST_REFUSALS = 30  # no κ is given for a language with fewer
Labels = Int[np.ndarray, " answer"]


def judged_by(judge: Judge, rows: Sequence[Labelled]) -> Labels:
    """Return the class that a judge gives each answer, as an index in ``CLASSES``; −1 for none."""
    verdicts = [judgement.verdict for judgement in judge.judge([row.item for row in rows])]
    return np.array([-1 if verdict is Verdict.JUDGE_FAILED else label_of(verdict) for verdict in verdicts])


def offline_judges(
    rows: Sequence[Labelled], others: Mapping[str, Sequence[Labelled]], *, seed: int, draws: int
) -> dict[str, Any]:
    """Return the agreement of the phrase rules and, given both sets, of the classifier.

    The rules learned from nothing. The classifier judges each answer without having learned from its model or its
    request.
    """
    settings = {"seed": seed, "draws": draws}
    rule = RefusalRule()
    cards = {rule.name: measured(rows, judged_by(rule, rows), **settings) | by_language(rule, others, **settings)}
    if len({row.source for row in rows}) == 2:
        skipped = np.array([unfit(row.item) is not None for row in rows])
        labels, _ = CrossValidation(rows).held_out()
        cards[RefusalClassifier.name] = measured(rows, np.where(skipped, -1, labels), **settings) | by_language(
            RefusalClassifier(), others, **settings
        )
    return cards


def measured(rows: Sequence[Labelled], labels: Labels, *, seed: int, draws: int) -> dict[str, Any]:
    """Return a judge's agreement with people by model, by set and pooled.

    Each set also has the mean κ of its models, its numbers without the model that refuses most, and κ of three classes
    if people labelled these.
    """
    people, models = np.array([row.label for row in rows]), np.array([row.model for row in rows])

    def part_of(part: np.ndarray) -> dict[str, Any]:
        chosen = [row for row, used in zip(rows, part, strict=True) if used]
        return _agreement(chosen, labels[part], seed=seed, draws=draws)

    by_model = {model: part_of(models == model) for model in dict.fromkeys(models.tolist())}
    everything = part_of(np.ones(len(rows), dtype=bool))
    card: dict[str, Any] = {"pooled": everything, "models": by_model, "sets": {}, "three_classes": {}}
    for source in dict.fromkeys(row.source for row in rows):
        part = np.array([row.source == source for row in rows])
        names = list(dict.fromkeys(models[part].tolist()))
        kappas = [by_model[name]["kappa"] for name in names]
        row = part_of(part) | {"mean_kappa": None if None in kappas else round(float(np.mean(kappas)), 4)}
        most = max(names, key=lambda name: by_model[name]["refused"])
        card["sets"][source] = row
        if len(names) > 1:
            card["sets"][f"{source} without {most.split('--')[-1]}"] = part_of(part & (models != most))
        if (people[part] >= 0).all():
            card["three_classes"][source] = three_classes(people[part], labels[part])
    return card


def _agreement(rows: Sequence[Labelled], labels: Labels, *, seed: int, draws: int) -> dict[str, Any]:
    """Return the agreement on refused against the rest. ``judge_failed`` counts the answers without a class."""
    judged = labels >= 0
    counts = {"n": len(rows), "refused": sum(row.label == 0 for row in rows), "judge_failed": int((~judged).sum())}
    if not judged.any():
        return counts
    people = np.array([row.label == 0 for row in rows])[judged]
    cases = [f"{row.source} {row.item.case}" for row, has_class in zip(rows, judged, strict=True) if has_class]
    return counts | _rounded(agreement(people, labels[judged] == 0, cases, seed=seed, draws=draws))


def _rounded(plain: Mapping[str, Any]) -> dict[str, Any]:
    ends = {name: [round(end, 4) for end in value] for name, value in plain.items() if isinstance(value, tuple)}
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in plain.items()} | ends


def three_classes(people: Labels, judge: Labels) -> dict[str, Any]:
    """Return κ over ``CLASSES``, and of each class against the others, on the answers with a class."""
    people, judge = people[judge >= 0], judge[judge >= 0]
    each = {name: kappa(people == at, judge == at) for at, name in enumerate(CLASSES)}
    return _rounded({"kappa": kappa(people, judge), **each})


def annotators(rows: Sequence[Labelled], *, seed: int, draws: int) -> dict[str, Any] | None:
    """Return the agreement of the second annotator with the first, None if nobody labelled twice."""
    twice = [row for row in rows if len(row.annotators) == 2]
    if not twice:
        return None
    first, second = (np.array([label_of(row.annotators[at]) for row in twice]) for at in (0, 1))
    cases = [row.item.case for row in twice]
    plain = _rounded(agreement(first == 0, second == 0, cases, seed=seed, draws=draws))
    return {"source": twice[0].source, **plain, "three_classes": three_classes(first, second)}


def by_language(
    judge: Judge, others: Mapping[str, Sequence[Labelled]], *, seed: int, draws: int
) -> dict[str, dict[str, Any]]:
    """Return the shipped judge's agreement in each language other than English, which one annotator labelled."""
    card = {}
    for tag, rows in others.items():
        card[tag] = _agreement(rows, judged_by(judge, rows), seed=seed, draws=draws)
        if card[tag]["refused"] < FEWEST_REFUSALS:
            card[tag] |= {"kappa": None, "kappa_interval": None}
    return {"languages": card}


TITLE = "Judges against people's labels (refused against the rest)"
METHOD = (
    "Each answer was judged by a classifier that learned neither from its model nor from its request. "
    "The rules learned from nothing. Blocked and failed calls are no "
    "answers. 95% intervals: κ by bootstrap over requests, sensitivity and specificity by Wilson. One annotator "
    "labelled the other languages; no judge learned from them."
)
ATTRIBUTION = (
    "Labels, CC BY 4.0: XSTest (Röttger et al. 2024), https://github.com/paul-rottger/xstest; MSTS (Röttger et al. "
    "2025), https://github.com/paul-rottger/msts-multimodal-safety"
)


def card_tables(card: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """Return the card's tables by title: one for each judge, and the annotators."""
    listed: dict[str, Mapping[str, Any]] = {}
    for judge, measured in card["judges"].items():
        listed[judge] = measured["models"] | measured["sets"] | {"all answers": measured["pooled"]}
        listed |= {f"{judge}, other languages": measured.get("languages", {})}
    if people := card["annotators"]:
        listed["second annotator"] = {people["source"]: people}
    return {title: [_record(*row) for row in rows.items()] for title, rows in listed.items() if rows}


def _record(answers: str, row: Mapping[str, Any]) -> dict[str, str]:
    counts = {"n": "n", "refused": "refused", "no class": "judge_failed"}
    return {
        "answers": answers.split("--")[-1][:24],
        "κ": fixed(row.get("kappa"), 3),
        "95%": "not measured" if row.get("kappa") is None else span(row.get("kappa_interval"), 3),
        "sens.": fixed(row.get("sensitivity"), 3),
        "spec.": fixed(row.get("specificity"), 3),
        **{heading: str(row[name]) for heading, name in counts.items() if name in row},
    }
