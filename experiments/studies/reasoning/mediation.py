"""Does the thought carry the picture? Mediation of the verdict's margin by the thought (Pearl 2001, UAI).

Of a pair of cases, x (safe) and x′ (unsafe), with thoughts t and t′, four margins m(case, thought) are read. The total
effect m(x, t) − m(x′, t′) is the sum of two parts, each the mean of its two orders, which differ by the interaction:

- through the thought: m(x, t) − m(x, t′) and m(x′, t) − m(x′, t′);
- direct, at a fixed thought: m(x, t) − m(x′, t) and m(x, t′) − m(x′, t′).

A thought that ends in its own verdict makes this trivial, so it is asked of the whole thought, of the thought without
its conclusion, and of its part up to the sentence that names a thing. A thought under another case is off the model's
own path. So two more totals are given, with thoughts of other cases on both sides: of the same label under another
sentence, and of the same thing in another drawing under the same sentence; near 1 of the own total, what a thought
says matters, and not whose it is.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.metrics.estimates import Resamples
from experiments.metrics.findings import Answer, Finding, change_evidence, stated
from experiments.metrics.pairs import thing_in
from experiments.studies.reasoning.thoughts import Thought, margins_behind
from experiments.types import Sample

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

TOTAL, THROUGH, DIRECT = "total", "through the thought", "direct"
SAME_LABEL, SAME_THING = "a thought of the same label", "a thought of the same thing"
CARRIES = "the thought carries it"
NOT_THERE = "the total effect is not shown, so that there is nothing to share out"
Row = dict[str, Any]
Pairs = Sequence[tuple[int, int]]


def mediation_rows(
    vlm: "VLM",
    samples: Sequence[Sample],
    prompts: "Sequence[Prompt]",
    mediators: Mapping[str, Sequence[Thought]],
    pairs: Pairs,
    *,
    draws: int,
    seed: int,
) -> list[Row]:
    """A row for each mediator (cut thoughts by its name, a thought a case) and part of the effect, in logits.

    ``effect`` with its interval over pairs, ``orders`` (of a part, both), ``share`` of the total (a ratio of sums) or
    ``reason``, why there is none. The first mediator's rows are followed by the controls'.
    """
    estimator = over_pairs(samples, pairs, draws=draws, seed=seed)
    rows = []
    for place, (name, thoughts) in enumerate(mediators.items()):

        def margins(cases: Sequence[int], of: Sequence[int], told: Sequence[Thought] = thoughts) -> np.ndarray:
            return margins_behind(vlm, [prompts[at] for at in cases], [told[at] for at in of])

        safe, unsafe = ([pair[member] for pair in pairs] for member in (0, 1))
        own, other = margins(safe, safe), margins(unsafe, unsafe)
        crossed, back = margins(safe, unsafe), margins(unsafe, safe)
        total = own - other
        parts = {
            THROUGH: (own - crossed, back - other),
            DIRECT: (own - back, crossed - other),
        }
        rows.append(_row(name, TOTAL, total, total, estimator))
        rows += [_row(name, part, sum(orders) / 2, total, estimator, orders) for part, orders in parts.items()]
        if not place:
            rows += _controls(name, samples, pairs, total, margins, estimator, seed)
    return rows


def over_pairs(samples: Sequence[Sample], pairs: Pairs, *, draws: int, seed: int) -> Resamples:
    """The resamples of pairs: their clusters, families of sentences and what the safe one shows."""
    first = [samples[one] for one, _ in pairs]
    return Resamples.of_cases(
        [one.cluster for one in first], [one.text for one in first], [one.tags for one in first], draws=draws, seed=seed
    )


def finding(rows: Sequence[Row], mediator: str, about: str) -> Finding:
    """Does the thought carry the difference that a picture (or a sentence) makes to the verdict?

    YES where what goes through the thought is shown and what is direct is not; NO the other way round; PARTLY where
    both are; else what may be said of the total.
    """
    effect = {row["part"]: row for row in rows if row["mediator"] == mediator}
    total, through, direct = (effect[name] for name in (TOTAL, THROUGH, DIRECT))
    shown = _is_shown(through), _is_shown(direct)
    answer = {(True, False): Answer.YES, (False, True): Answer.NO, (True, True): Answer.PARTLY}.get(shown)
    said = stated(total["effect"])
    if answer is None or said not in (Answer.ROSE, Answer.FELL):
        answer = said if said in (Answer.TOO_FEW, Answer.CANNOT_TELL) else Answer.NOT_SHOWN
    evidence = change_evidence(total["effect"])
    for name, one in (("through", through), ("direct", direct)):
        evidence |= change_evidence(one["effect"], f"{name}_") | change_evidence(one["share"], f"{name}_share_")
    return Finding(CARRIES, answer, evidence | {"mediator": mediator}, about)


def _is_shown(row: Row) -> bool:
    return stated(row["effect"]) in (Answer.ROSE, Answer.FELL)


def _row(
    mediator: str,
    part: str,
    effect: np.ndarray,
    total: np.ndarray,
    estimator: Resamples,
    orders: Sequence[np.ndarray] = (),
) -> Row:
    whole = estimator.effect(total)
    shown = stated(whole) in (Answer.ROSE, Answer.FELL)
    return {
        "mediator": mediator,
        "part": part,
        "effect": estimator.effect(effect),
        "orders": [estimator.effect(one) for one in orders],
        "share": estimator.ratio(effect, total) if shown else None,
        "reason": None if shown else NOT_THERE,
    }


def _controls(
    mediator: str,
    samples: Sequence[Sample],
    pairs: Pairs,
    total: np.ndarray,
    margins: Callable[[Sequence[int], Sequence[int]], np.ndarray],
    estimator: Resamples,
    seed: int,
) -> list[Row]:
    """The total with thoughts of other cases in place of the own ones, on the pairs that have such."""
    known = sorted({at for pair in pairs for at in pair})
    draw = random.Random(f"{seed}:foreign thoughts")

    def foreign(at: int, kind: str) -> int | None:
        own = samples[at]
        fit = [
            other for other in known
            if samples[other].gold == own.gold and other != at and (
                samples[other].prompt != own.prompt if kind == SAME_LABEL
                else samples[other].prompt == own.prompt and thing_in(samples[other]) == thing_in(own) != ""
            )
        ]  # fmt: skip
        return draw.choice(fit) if fit else None

    rows = []
    for kind in (SAME_LABEL, SAME_THING):
        found = [(pair, [foreign(at, kind) for at in pair]) for pair in pairs]
        used = [at for at, (_, others) in enumerate(found) if None not in others]
        effect = np.full(len(pairs), np.nan)
        if used:
            safe, unsafe = (
                margins([found[at][0][m] for at in used], [int(found[at][1][m] or 0) for at in used]) for m in (0, 1)
            )
            effect[used] = safe - unsafe
            rows.append(_row(mediator, kind, effect, np.where(np.isfinite(effect), total, np.nan), estimator))
    return rows
