"""When was it decided? The margin of the verdict if the thought is broken off earlier.

The thought is closed after a share of its sentences, and the verdict is read; 0 is the empty thought. Of two cases of
one sentence, how often does the margin put the case first that the model says Yes to in the end (*its own verdict*), or
the safe case (*the truth*)? Within sentences, a constant of a sentence or of the model does nothing: a guess is right
in a half. The same with margins exchanged between the cases of a sentence shows what a guess looks like on these cases.
"""

import math
import random
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.metrics.case_groups import all_pairs
from experiments.metrics.estimates import HIGHER, NO_DIFFERENCE, TOO_FEW, Resamples, side
from experiments.runs.results_table import Results, Row, group_of, row
from experiments.studies.reasoning.thoughts import Thought

ARM, EMPTY, EXCHANGED = "baseline", "empty thought", "exchanged cases"
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a thought's sentences
OWN, TRUTH = "its own verdict", "the truth"
Decided = Literal["before", "partly before", "by thinking", "inconclusive", "too few cases", "cannot be told"]


def broken_off(thoughts: Sequence[Thought], share: float) -> list[Thought]:
    """Return each thought up to a share of its sentences, rounded down."""
    return [thought.upto(math.floor(share * len(thought.sentences) + 1e-9)) for thought in thoughts]


def curve(
    margins: Float[np.ndarray, "share case"],
    says_yes: Bool[np.ndarray, " case"],
    safe: Bool[np.ndarray, " case"],
    questions: np.ndarray,
    estimator: Resamples,
    *,
    seed: int,
) -> list[Row]:
    """Return rows for each label and share: the order within sentences and its change from the empty thought.

    ``decision_sign`` is the share of cases whose margin has the sign of the label.
    """
    codes = np.unique(questions, return_inverse=True)[1]
    mixed = _exchanged(codes, seed)
    rows = []
    for label, positive in ((OWN, says_yes), (TRUTH, safe)):
        pairs = all_pairs(codes, positive)
        for share, values in zip(SHARES, margins, strict=True):
            group = group_of(by=label, left=share)
            order, change = estimator.paired_order(pairs, values, margins[0])
            exchanged, _ = estimator.paired_order(pairs, values[mixed])
            agrees = np.where(np.isfinite(values), ((values > 0) == positive).astype(float), np.nan)
            entries = {(ARM, ""): order, (ARM, EMPTY): change, (EXCHANGED, ""): exchanged}
            rows += [row("decision_order", arm=arm, against=against, group=group, entry=entry, n=entry["pairs"])
                     for (arm, against), entry in entries.items()]  # fmt: skip
            rows.append(row("decision_sign", arm=ARM, group=group, entry=estimator.mean(agrees)))
    return rows


def _exchanged(codes: Int[np.ndarray, " case"], seed: int) -> Int[np.ndarray, " case"]:
    """Draw a case of the same sentence for each case."""
    draw, drawn = random.Random(f"{seed}:permuted margins"), np.arange(len(codes))
    for code in np.unique(codes):
        where = np.flatnonzero(codes == code).tolist()
        drawn[where] = draw.sample(where, len(where))
    return drawn


def decided(results: Results) -> Decided:
    """Return when the verdict was decided.

    *before*: the margins of the empty thought are above a guess, and order verdicts as the whole thought's margins do
    (no relevant difference). *partly before*: they are above a guess, and the whole thought orders more. *by thinking*:
    they are not shown to be above a guess, and the whole thought orders more.
    """
    first = results.get(ARM, "decision_order", group=group_of(by=OWN, left=SHARES[0]))
    last = results.get(ARM, "decision_order", against=EMPTY, group=group_of(by=OWN, left=SHARES[-1]))
    if first is None or last is None or last.value is None:
        return "cannot be told"
    answers: dict[tuple[str, bool], Decided] = {
        (NO_DIFFERENCE, True): "before",
        (HIGHER, True): "partly before",
        (HIGHER, False): "by thinking",
    }
    otherwise: Decided = "too few cases" if last.claim == TOO_FEW else "inconclusive"
    return answers.get((last.claim, side(first._asdict(), 0.5) > 0), otherwise)
