"""From answers to records: verdicts by a judge, or by the signs of margins. Imports neither torch nor transformers."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from experiments.benchmarks.images import open_image
from experiments.judges.yes_no import published_verdict
from experiments.runs import records
from experiments.types import Item, Judge, Judgement, Sample, Status, Verdict
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import Generation

JUDGE = "margin"  # the judge in records of scored verdicts


def judge_batch(
    samples: Sequence[Sample], arm: str, settings: str, generation: "Generation", judge: Judge
) -> Iterator[dict[str, Any]]:
    """The records of one batch, its answers judged together."""
    statuses = [records.status_of(generation, index) for index in range(len(samples))]
    readable = [index for index, status in enumerate(statuses) if status.has_text]
    items = [item_of(samples[index], generation.texts[index]) for index in readable]
    judgements = dict(zip(readable, judge.judge(items), strict=True)) if items else {}
    for index, (sample, status) in enumerate(zip(samples, statuses, strict=True)):
        reason = "" if generation.reasons is None else generation.reasons[index]
        if status.excluded:
            yield records.failed(sample, arm, settings, status, reason)
            continue
        yield _answered(
            sample,
            arm,
            settings,
            status=status,
            response=generation.texts[index],
            **_of_answer(generation, index),
            judgement=judgements.get(index, judgement_without_text(judge)),
            judge=judge.name,
            prompt=None if generation.prompts is None else generation.prompts[index],
            reason=reason,
        )


def scored(samples: Sequence[Sample], arm: str, settings: str, generation: "Generation") -> Iterator[dict[str, Any]]:
    """The records of one batch under ``protocol=score``: verdicts are the signs of the margins; no judge is called.

    Raises:
        UserError: a margin is not a number.
    """
    margins = [float(margin) for margin in generation.margins]
    if not all(map(isfinite, margins)):
        missing = sum(not isfinite(margin) for margin in margins)
        raise UserError(
            f"arm {arm} gives no margins for {missing} of {len(margins)} answers, and protocol=score reads nothing "
            "else; leave protocol out"
        )
    prompts = [None] * len(samples) if generation.prompts is None else generation.prompts
    for index, (sample, margin, prompt) in enumerate(zip(samples, margins, prompts, strict=True)):
        verdict = Verdict.YES if margin > 0 else Verdict.NO
        yield {
            **_answered(
                sample,
                arm,
                settings,
                status=Status.ANSWERED,
                response=f"{verdict.value.title()}.",  # the word that the margin stands for
                **_of_answer(generation, index),
                judgement=Judgement(verdict),
                judge=JUDGE,
                prompt=prompt,
            ),
            "protocol": "score",
        }


def _of_answer(generation: "Generation", index: int) -> dict[str, Any]:
    """What a record keeps of one answer's margin, and of how it came about."""
    return {
        "margin": float(generation.margins[index]),
        "unshifted": None if generation.unshifted is None else float(generation.unshifted[index]),
        "sampled": generation.sampled,
        "branch": generation.branch,
        "steps": {} if generation.steps is None else generation.steps[index],
    }


def _answered(sample: Sample, arm: str, settings: str, *, response: str, **fields: Any) -> dict[str, Any]:
    """A record with the verdict of the published yes/no rule beside the judge's."""
    published = published_verdict(response) if sample.gold in ("yes", "no") else None
    return records.answered(sample, arm, settings, response=response, published_verdict=published, **fields)


def judgement_without_text(judge: Judge) -> Judgement | None:
    """The judgement of an answer without text: "no verdict" in a yes/no benchmark, None (unknown) in a refusal one."""
    return Judgement(Verdict.NO_VERDICT) if judge.kind == "yes_no" else None


def item_of(sample: Sample, response: str) -> Item:
    """One answer as shown to a judge; the image is opened only if the judge asks for it."""
    image = None if sample.image is None else partial(open_image, sample.image)
    return Item(sample.id, sample.text, response, image, sample.gold, sample.tags.get("language", "en"))
