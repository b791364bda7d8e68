"""Does the thought carry the picture? Mediation of the verdict's margin by the thought (Pearl 2001, UAI).

Of a pair of cases, x (safe) and x′ (unsafe), with thoughts t and t′, four margins m(case, thought) are read. The total
effect m(x, t) − m(x′, t′) is the sum of two parts. Each is the mean of its two orders, which differ by the interaction:

- through the thought: m(x, t) − m(x, t′) and m(x′, t) − m(x′, t′);
- direct, at a fixed thought: m(x, t) − m(x′, t) and m(x, t′) − m(x′, t′).

A thought that ends in its own verdict makes this trivial. So it is measured for the whole thought, and for the thought
without its conclusion. A thought under another case is off the model's own path. So two more totals have thoughts of
other cases on both sides. One has thoughts of the same label under another sentence. The other has thoughts of the same
thing in another drawing under the same sentence. If they are near the total, it matters what a thought says, and not
whose it is.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from experiments.metrics.case_groups import thing_in
from experiments.metrics.estimates import HIGHER, LOWER, TOO_FEW, Resamples
from experiments.runs.results_table import Results, Row, group_of, row
from experiments.studies.reasoning.decision_curve import ARM
from experiments.studies.reasoning.thoughts import Thought, margins_behind
from experiments.types import Sample

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

EFFECT, SHARE, UNSAFE = "mediation_effect", "mediation_share", "unsafe case"
TOTAL, THROUGH, DIRECT = "total", "through the thought", "direct"
SAME_LABEL, SAME_THING = "a thought of the same label", "a thought of the same thing"
Pairs = Sequence[tuple[int, int]]
Carried = Literal["yes", "no", "partly", "inconclusive", "too few cases", "cannot be told"]


def mediation_rows(
    vlm: "VLM",
    samples: Sequence[Sample],
    prompts: "Sequence[Prompt]",
    mediators: Mapping[str, Sequence[Thought]],
    pairs: Pairs,
    *,
    differs: str,
    draws: int,
    seed: int,
) -> list[Row]:
    """Return rows for each mediator (name → thoughts, cut, of all cases) and part of the effect, in logits.

    A part also has its two orders, and its share of the total (a ratio of sums) if the total is shown. The first
    mediator has the controls, too. ``differs`` names the kind of pair.
    """
    first = [samples[safe] for safe, _ in pairs]
    estimator = Resamples.from_cases([case.cluster for case in first], [case.text for case in first],
                                   [case.tags for case in first], draws=draws, seed=seed)  # fmt: skip
    rows: list[Row] = []
    safe, unsafe = ([pair[member] for pair in pairs] for member in (0, 1))
    for number, (name, thoughts) in enumerate(mediators.items()):

        def margins(cases: Sequence[int], others: Sequence[int], told: Sequence[Thought] = thoughts) -> np.ndarray:
            return margins_behind(vlm, [prompts[index] for index in cases], [told[index] for index in others])

        safe_margins, unsafe_margins = margins(safe, safe), margins(unsafe, unsafe)
        crossed, back = margins(safe, unsafe), margins(unsafe, safe)
        total = safe_margins - unsafe_margins
        parts = {
            TOTAL: (total,),
            THROUGH: (safe_margins - crossed, back - unsafe_margins),
            DIRECT: (safe_margins - back, crossed - unsafe_margins),
        }
        if not number:
            parts |= _controls(samples, pairs, margins, seed)
        for part, orders in parts.items():
            effect = sum(orders) / len(orders)
            key = {"differs": differs, "thought": name, "part": part}
            rows.append(row(EFFECT, arm=ARM, against=UNSAFE, group=group_of(**key), entry=estimator.effect(effect)))
            rows += [
                row(EFFECT, arm=ARM, against=UNSAFE, group=group_of(**key, order=order), entry=estimator.effect(values))
                for order, values in enumerate(orders if len(orders) > 1 else (), 1)
            ]
            reference = np.where(np.isfinite(effect), total, np.nan)
            if part != TOTAL and _shown(estimator.effect(reference)["claim"]):
                rows.append(row(SHARE, arm=ARM, group=group_of(**key), entry=estimator.ratio(effect, reference)))
    return rows


def carried(results: Results, differs: str, mediator: str) -> Carried:
    """Return whether the thought carries the difference that a picture (or a sentence) makes to the verdict.

    *yes*: the part through the thought is shown, and the direct part is not; *no*: the other way round; *partly*: both.
    """
    total, through, direct = (
        getattr(effect_of(results, differs, mediator, part), "claim", "") for part in (TOTAL, THROUGH, DIRECT)
    )
    answers: dict[tuple[bool, bool], Carried] = {(True, False): "yes", (False, True): "no", (True, True): "partly"}
    answer = answers.get((_shown(through), _shown(direct)))
    if answer and _shown(total):
        return answer
    return "too few cases" if total == TOO_FEW else "inconclusive" if total else "cannot be told"


def effect_of(results: Results, differs: str, mediator: str, part: str) -> Row | None:
    """Return one effect of ``mediation_rows``."""
    return results.get(ARM, EFFECT, against=UNSAFE, group=group_of(differs=differs, thought=mediator, part=part))


def _shown(claim: str) -> bool:
    return claim in (HIGHER, LOWER)


def _controls(
    samples: Sequence[Sample], pairs: Pairs, margins: Callable[[Sequence[int], Sequence[int]], np.ndarray], seed: int
) -> dict[str, tuple[np.ndarray, ...]]:
    """Return the total with thoughts of other cases instead of their own, on the pairs that have such; else NaN."""
    members = sorted({index for pair in pairs for index in pair})
    draw = random.Random(f"{seed}:foreign thoughts")

    def foreign(index: int, kind: str) -> int | None:
        case = samples[index]
        fit = [
            other for other in members
            if samples[other].gold == case.gold and other != index and (
                samples[other].prompt != case.prompt if kind == SAME_LABEL
                else samples[other].prompt == case.prompt and thing_in(samples[other]) == thing_in(case) != ""
            )
        ]  # fmt: skip
        return draw.choice(fit) if fit else None

    parts: dict[str, tuple[np.ndarray, ...]] = {}
    for kind in (SAME_LABEL, SAME_THING):
        drawn = [[foreign(index, kind) for index in pair] for pair in pairs]
        used = [number for number, others in enumerate(drawn) if None not in others]
        effect = np.full(len(pairs), np.nan)
        if used:
            safe, unsafe = (
                margins([pairs[number][m] for number in used], [int(drawn[number][m] or 0) for number in used])
                for m in (0, 1)
            )
            effect[used] = safe - unsafe
            parts[kind] = (effect,)
    return parts
