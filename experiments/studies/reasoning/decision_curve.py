"""When was it decided? The verdict's margin with the thought broken off at earlier places.

At each place the thought is closed and the verdict read. A place is a share of a thought's sentences, so that thoughts
of uneven length can be put beside each other; 0 is the empty thought. Of two cases of one sentence, how often does the
margin put the one first that the model in the end says Yes to (*its own verdict*), and the safe one (*the truth*)?
Within sentences a constant of a sentence or of the model does nothing, so that a guess is right in a half; the same
with margins exchanged between the cases of a sentence (``permuted``) shows what a guess looks like on these cases.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.metrics.estimates import Resamples
from experiments.metrics.findings import SMALL, Answer, Finding, change_evidence, side, stated
from experiments.metrics.pairs import all_pairs
from experiments.studies.reasoning.thoughts import Thought

PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)
OWN, TRUTH = "its own verdict", "the truth"
DECIDED_BEFORE = "decided before it thought"
Row = dict[str, Any]


def broken_off(thoughts: Sequence[Thought], place: float) -> list[Thought]:
    """Each thought up to ``place``, a share of its sentences rounded down."""
    return [one.upto(math.floor(place * len(one.sentences) + 1e-9)) for one in thoughts]


def curve(
    margins: Float[np.ndarray, "place case"],
    says_yes: Bool[np.ndarray, " case"],
    safe: Bool[np.ndarray, " case"],
    questions: np.ndarray,
    estimator: Resamples,
    *,
    seed: int,
) -> list[Row]:
    """A row for each label and place: ``order`` (AUROC within sentences), ``change`` from the empty thought,
    ``permuted``, and the share of cases whose margin has the sign of the label (``agrees``)."""
    group = np.unique(questions, return_inverse=True)[1]
    mixed = _exchanged(group, seed)
    rows = []
    for label, positive in ((OWN, says_yes), (TRUTH, safe)):
        pairs = all_pairs(group, positive)
        for place, row in zip(PLACES, margins, strict=True):
            order, change = estimator.paired_order(pairs, row, margins[0])
            rows.append({
                "label": label, "place": place, "order": order, "change": change,
                "permuted": estimator.paired_order(pairs, row[mixed])[0],
                "agrees": estimator.mean(np.where(np.isfinite(row), ((row > 0) == positive).astype(float), np.nan)),
            })  # fmt: skip
    return rows


def _exchanged(group: Int[np.ndarray, " case"], seed: int) -> Int[np.ndarray, " case"]:
    """A place of the same group for each case, drawn."""
    draw, found = random.Random(f"{seed}:permuted margins"), np.arange(len(group))
    for one in np.unique(group):
        where = np.flatnonzero(group == one).tolist()
        found[where] = draw.sample(where, len(where))
    return found


def finding(rows: Sequence[Row]) -> Finding:
    """Was the model's verdict there before it thought?

    YES where the empty thought's margins order its verdicts as the whole thought's do (no change of more than
    ``SMALL``) and above a guess; PARTLY where they do above a guess, and the whole thought's do better; NO where they
    are not shown to, and the whole thought's do better; else what may be said of the change.
    """
    own = [row for row in rows if row["label"] == OWN]
    first, last = own[0]["order"], own[-1]["change"]
    said, above = stated(last), side(first, 0.5) > 0
    answer = {
        (Answer.NO_CHANGE, True): Answer.YES,
        (Answer.ROSE, True): Answer.PARTLY,
        (Answer.ROSE, False): Answer.NO,
    }.get((said, above), said if said in (Answer.TOO_FEW, Answer.CANNOT_TELL) else Answer.NOT_SHOWN)
    evidence = change_evidence(first) | change_evidence(last, "change_") | {"end": own[-1]["order"]["value"]}
    return Finding(DECIDED_BEFORE, answer, evidence | {"small": SMALL})
