"""Agreement of refusal judges with people's labels of XSTest's and MSTS's answers, by model, set, class and language.

No judge has learned from the model that it judges, nor from the request, in the figure that counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from experiments.benchmarks import msts, xstest
from experiments.evaluation.classifier_training import (
    EVEN,
    LabelledAnswers,
    fit,
    held_out,
    labelled_answers,
    rebuttals,
    train,
)
from experiments.judges.rebuttals import not_refused
from experiments.judges.refusal_classifier import RefusalClassifier, ThreeClasses, by_judgements, unfit
from experiments.judges.refusal_rules import RefusalRule
from experiments.metrics.agreement import agreement, calibration, kappa, kappa_at, mean_kappa_interval
from experiments.types import Item, Judge, Verdict
from interp.errors import UserError

XSTEST, MSTS = "xstest", "msts"
BASE_RATES = (0.02, 0.05, 0.1, 0.2, 0.5)
QUANTILES = (0.01, 0.5, 0.99)  # of the answers' lengths
FEWEST_REFUSALS = 30  # below, no κ is given of a language
REFUSALS = (Verdict.REFUSED, Verdict.PARTIAL)
CLASSES = ("refused", "rebutted", "answered")


@dataclass(frozen=True)
class Labelled:
    """An answer and what people say of it: ``verdict`` is None where they say only that it is no refusal.

    ``group`` names the twins of its request, ``annotators`` what each said before it was settled.
    """

    source: str  # the set
    model: str  # unique over the sets
    group: str
    item: Item
    verdict: Verdict | None
    annotators: tuple[Verdict, ...] = ()

    @property
    def refused(self) -> bool:
        """Fully or in part."""
        return self.verdict in REFUSALS

    @property
    def kind(self) -> int:
        """The place of its class in ``CLASSES``; −1 where people do not say."""
        return -1 if self.verdict is None else _kind(self.verdict)


def _kind(verdict: Verdict) -> int:
    return 0 if verdict in REFUSALS else 1 if verdict is Verdict.REBUTTED else 2


def read_labelled(roots: Sequence[Path]) -> tuple[list[Labelled], dict[str, list[Labelled]]]:
    """The English answers of all sets, set by set, and MSTS's in each other language.

    ``roots`` are folders with XSTest's labelled completions, or clones of MSTS; which, their files say.

    Raises:
        UserError: a folder holds neither, or two hold the same set.
    """
    english, others = dict[str, list[Labelled]](), dict[str, list[Labelled]]()
    for root in roots:
        name = MSTS if msts.holds_answers(root) else XSTEST
        if name in english:
            raise UserError(f"task.root: two folders hold the answers of {name}; give one of each set")
        if name == XSTEST:
            english[name] = _of_xstest(root)
            continue
        for tag, language in msts.read_answers(root).items():
            rows = _of_msts(language)
            if tag == "en":
                english[name] = rows
            else:
                others[tag] = rows
    return [row for name in (XSTEST, MSTS) for row in english.get(name, [])], others


def _of_xstest(root: Path) -> list[Labelled]:
    completions, groups = xstest.read_completions(root), xstest.twins(root)
    rows = [row for part in completions.values() for row in part]
    if absent := sorted({row.case for row in rows} - set(groups)):
        raise UserError(f"{absent[0]}: is in the completions and not among XSTest's prompts; take both as published")
    return [
        Labelled(XSTEST, row.model, f"{XSTEST} {groups[row.case]}", _item(row, "en"),
                 row.verdict if row.refused else None)
        for row in rows
    ]  # fmt: skip


def _of_msts(language: msts.Language) -> list[Labelled]:
    groups = msts.twins(language.answers)
    return [
        Labelled(MSTS, one.model, f"{MSTS} {groups[one.case, one.question]}", _item(one, language.tag), one.verdict,
                 one.annotators)
        for one in language.answers
    ]  # fmt: skip


def _item(row: xstest.LabelledCompletion | msts.LabelledAnswer, language: str) -> Item:
    return Item(row.case, row.question, row.response, None, "comply", language)


class Taught(NamedTuple):
    """What the judge's three classifiers learn from: XSTest's answers, MSTS's, and MSTS's that refuse nothing."""

    requests: LabelledAnswers
    judgements: LabelledAnswers
    rebuttals: LabelledAnswers


def taught_by(rows: Sequence[Labelled]) -> Taught:
    """The features and labels of all answers.

    Raises:
        UserError: answers of one of the two sets are missing.
    """
    parts = {source: [row for row in rows if row.source == source] for source in (XSTEST, MSTS)}
    where = {XSTEST: xstest.REPOSITORY, MSTS: msts.REPOSITORY}
    if absent := [source for source, part in parts.items() if not part]:
        raise UserError(f"task.root: the classifier learns from two sets, and the labelled answers of {absent[0]} are "
                        f"missing; clone {where[absent[0]]} too: task.root=[<clone>,<clone>]")  # fmt: skip
    requests, judgements = (
        labelled_answers(
            [row.item.response for row in part],
            [row.refused for row in part],
            models=[row.model for row in part],
            prompts=[row.item.question for row in part],
            groups=[row.group for row in part],
        )
        for part in parts.values()
    )
    return Taught(requests, judgements, rebuttals(judgements, [row.verdict is Verdict.REBUTTED for row in parts[MSTS]]))


def trained(rows: Sequence[Labelled], *, trained_on: str) -> ThreeClasses:
    """The judge's classifiers, trained on all answers. Of requests the threshold is chosen; the others are even."""
    taught = taught_by(rows)
    return ThreeClasses(
        train(taught.requests),
        train(taught.judgements, thresholds=EVEN),
        train(taught.rebuttals, thresholds=EVEN),
        trained_on=trained_on,
    )


def nested(rows: Sequence[Labelled], *, prompts: bool) -> tuple[list[Verdict | None], np.ndarray, dict[str, float]]:
    """The classifier's verdicts, chances of a refusal and thresholds, without the model that answered.

    None where it gives no class (``unfit``).

    With ``prompts``, without its fold of requests, too. What was trained on one set alone has learned from no answer of
    the other.
    """
    taught = taught_by(rows)
    requests = held_out(taught.requests, prompts=prompts)
    judgements = held_out(taught.judgements, prompts=prompts, thresholds=EVEN)
    rebutted = held_out(taught.rebuttals, prompts=prompts, thresholds=EVEN)
    whole_of = [fit(part, EVEN[0]) for part in taught]
    middle = median_low(requests.thresholds.values())
    at = dict.fromkeys((XSTEST, MSTS), 0)
    verdicts, chances = list[Verdict | None](), np.zeros(len(rows))
    for row_at, row in enumerate(rows):
        place, response, own = at[row.source], row.item.response, row.source == MSTS
        at[row.source] += 1
        found = judgements if own else requests
        chance, refused = found.chance[place], bool(found.refused[place])
        if own != by_judgements(response, row.item.question):
            chance = whole_of[0 if own else 1].probability(response)
            refused = chance >= (middle if own else EVEN[0])
        rebuttal = rebutted.chance[place] if own else whole_of[2].chance(response)
        chances[row_at] = chance
        said = Verdict.REFUSED if refused else not_refused(response, rebuttal)
        verdicts.append(None if unfit(row.item) else said)
    thresholds = {
        model if fold is None else f"{model}, fold {fold}": one for (model, fold), one in requests.thresholds.items()
    }
    return verdicts, chances, thresholds


def measured(rows: Sequence[Labelled], verdicts: Sequence[Verdict | None], *, seed: int, draws: int) -> dict[str, Any]:
    """A judge's agreement with people: by model, over all answers, and by set; and how many words the answers have.

    ``verdicts`` are the judge's, in the order of ``rows``; what it could not judge is left out and counted
    (``judge_failed``). Of MSTS also three classes; of each set also all models but the one that refused most.
    """
    people, kinds = np.array([row.refused for row in rows]), np.array([row.kind for row in rows])
    cases = np.array([f"{row.source} {row.item.case}" for row in rows])
    known = np.array([one not in (None, Verdict.JUDGE_FAILED) for one in verdicts])
    said = np.array([-1 if not ok else _kind(one) for ok, one in zip(known, verdicts, strict=True)])  # type: ignore[arg-type]
    models, sources = np.array([row.model for row in rows]), np.array([row.source for row in rows])

    def agreed(where: Bool[np.ndarray, " answer"]) -> dict[str, Any]:
        judged = where & known
        found = agreement(people[judged], said[judged] == 0, cases[judged].tolist(), seed=seed, draws=draws)
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
        return plain | {"judge_failed": int((where & ~known).sum())}

    found: dict[str, Any] = {"models": {}, "sets": {}}
    for model in dict.fromkeys(models.tolist()):
        found["models"][model] = agreed(models == model)
    found["pooled"] = agreed(np.ones(len(rows), dtype=bool))
    found["base_rates"] = at_base_rates(found["pooled"])
    lengths = np.quantile([len(row.item.response.split()) for row in rows], QUANTILES, method="closest_observation")
    found["answer_words"] = {f"{at:g}": int(length) for at, length in zip(QUANTILES, lengths, strict=True)}
    for source in dict.fromkeys(sources.tolist()):
        here = sources == source
        names = list(dict.fromkeys(models[here].tolist()))
        of_set = {"pooled": agreed(here), **_mean_kappa(names, models, cases, people, said == 0, known, seed, draws)}
        of_set["base_rates"] = at_base_rates(of_set["pooled"])
        most = max(names, key=lambda name: int(people[models == name].sum()))
        if len(names) > 1:
            of_set["without"] = {"model": most} | agreed(here & (models != most))
        if (kinds[here] >= 0).all():
            of_set["three_classes"] = three_classes(kinds[here & known], said[here & known])
        found["sets"][source] = of_set
    return found


def _mean_kappa(
    names: Sequence[str],
    models: np.ndarray,
    cases: np.ndarray,
    people: Bool[np.ndarray, " answer"],
    refused: Bool[np.ndarray, " answer"],
    known: Bool[np.ndarray, " answer"],
    seed: int,
    draws: int,
) -> dict[str, Any]:
    """The mean κ over models; with an interval where all were judged on the same prompts, which are drawn together."""
    parts = [known & (models == name) for name in names]
    kappas, interval = [kappa(people[where], refused[where]) for where in parts], None
    if len({tuple(cases[where]) for where in parts}) == 1:
        sides = ([of[where] for where in parts] for of in (people, refused))
        interval = mean_kappa_interval(*sides, seed=seed, draws=draws)
    return {
        "mean_kappa": None if None in kappas else float(np.mean([one for one in kappas if one is not None])),
        "mean_kappa_interval": None if interval is None else list(interval),
    }


def at_base_rates(pooled: Mapping[str, Any]) -> dict[str, float]:
    """κ that a judge of this sensitivity and specificity would have where 2 to 50% of the answers are refusals."""
    seen, left = pooled["sensitivity"], pooled["specificity"]
    if seen is None or left is None:
        return {}
    return {f"{rate:g}": kappa_at(rate, seen, left) for rate in BASE_RATES}


def three_classes(people: Int[np.ndarray, " answer"], judge: Int[np.ndarray, " answer"]) -> dict[str, Any]:
    """κ over ``CLASSES``, of each class against the other two, and how many answers people and judge put where."""
    counts = np.zeros((len(CLASSES), len(CLASSES)), dtype=int)
    np.add.at(counts, (people, judge), 1)
    return {
        "kappa": kappa(people, judge),
        "by_class": {name: kappa(people == at, judge == at) for at, name in enumerate(CLASSES)},
        "counts": {
            name: dict(zip(CLASSES, row.tolist(), strict=True)) for name, row in zip(CLASSES, counts, strict=True)
        },
    }


def annotators(rows: Sequence[Labelled], *, seed: int, draws: int) -> dict[str, Any] | None:
    """The agreement of the first annotator with the second, as if one were the judge; None without two."""
    twice = [row for row in rows if len(row.annotators) == 2]
    if not twice:
        return None
    first, second = (np.array([_kind(row.annotators[at]) for row in twice]) for at in (0, 1))
    cases = [row.item.case for row in twice]
    found = agreement(first == 0, second == 0, cases, seed=seed, draws=draws)
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    return {"source": twice[0].source, **plain, "three_classes": three_classes(first, second)}


def by_language(judge: Judge, others: Mapping[str, Sequence[Labelled]], *, seed: int, draws: int) -> dict[str, Any]:
    """The agreement in each language other than English, judged as it is shipped; one annotator's labels.

    Below ``FEWEST_REFUSALS`` refusals no κ is given: sensitivity and specificity stand with their counts.
    """
    found = dict[str, Any]()
    for tag, rows in others.items():
        verdicts = [one.verdict for one in judge.judge([row.item for row in rows])]
        known = [at for at, one in enumerate(verdicts) if one is not Verdict.JUDGE_FAILED]
        if not known:
            found[tag] = {"n": len(rows), "refused": sum(row.refused for row in rows), "judge_failed": len(rows)}
            continue
        people = np.array([rows[at].refused for at in known])
        refused = np.array([verdicts[at] in REFUSALS for at in known])
        one = agreement(people, refused, [rows[at].item.case for at in known], seed=seed, draws=draws)
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in one.items()}
        if int(people.sum()) < FEWEST_REFUSALS:
            plain |= {"kappa": None, "kappa_interval": None}
        found[tag] = plain | {
            "judge_failed": len(rows) - len(known),
            "found": int((people & refused).sum()),
            "wrongly_called": int((~people & refused).sum()),
        }
    return found


def offline_judges(
    rows: Sequence[Labelled], others: Mapping[str, Sequence[Labelled]], *, seed: int, draws: int
) -> dict[str, Any]:
    """The agreement of the phrase rules, which learn from nothing, and of the classifier.

    The classifier's figure is that with model and request left out; ``models_left_out`` is the easier one beside. It
    takes the answers of both sets to train it; of one alone only the rules are measured.
    """
    settings = {"seed": seed, "draws": draws}
    rule = measured(rows, read_by(RefusalRule(), rows), **settings)
    found: dict[str, Any] = {RefusalRule.name: rule | {"languages": by_language(RefusalRule(), others, **settings)}}
    if len({row.source for row in rows}) < 2:
        return found
    verdicts, chances, thresholds = nested(rows, prompts=True)
    easier_verdicts, _, easier_thresholds = nested(rows, prompts=False)
    easier = measured(rows, easier_verdicts, **settings)
    found[RefusalClassifier.name] = measured(rows, verdicts, **settings) | {
        "thresholds": thresholds,
        "calibration": calibration(np.array([row.refused for row in rows]), chances),
        "models_left_out": {name: easier[name] for name in ("models", "pooled", "sets")}
        | {"thresholds": easier_thresholds},
        "languages": by_language(RefusalClassifier(), others, **settings),
    }
    return found


def read_by(judge: Judge, rows: Sequence[Labelled]) -> list[Verdict | None]:
    """The verdicts of a judge that was trained on none of the answers."""
    return [found.verdict for found in judge.judge([row.item for row in rows])]


def by_authors(verdicts: Mapping[str, Mapping[str, Verdict | None]], rows: Sequence[Labelled]) -> list[Verdict | None]:
    """The verdicts of a judge of XSTest's authors' (``experiments.benchmarks.xstest.read_authors_verdicts``)."""
    return [verdicts.get(row.model, {}).get(row.item.case) for row in rows]
