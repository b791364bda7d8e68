"""From answers to records: verdicts by a judge, or by the signs of margins. Imports neither torch nor transformers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from experiments.benchmarks.images import one_picture
from experiments.evaluation.conversations import judged_turns, transcript
from experiments.judges.language import language_of
from experiments.judges.yes_no import published_verdict
from experiments.runs import record_fields
from experiments.types import Item, Judge, Judgement, Sample, Status, Verdict
from interp.errors import UserError
from interp.thoughts import Spoken, split

if TYPE_CHECKING:
    from interp.vlm import Generation

JUDGE = "margin"  # the judge in records of scored verdicts


def judge_batch(samples: Sequence[Sample], arm: str, generation: "Generation", judge: Judge) -> list[dict[str, Any]]:
    """Return the records of one batch, its answers judged together."""
    generation = _told_apart(generation)
    statuses = [record_fields.status_of(generation, index) for index in range(len(samples))]
    readable = [index for index, status in enumerate(statuses) if status.has_text and generation.texts[index]]
    told = generation.steps or [{} for _ in samples]
    items = [item_of(samples[index], generation.texts[index], told[index]) for index in readable]
    judgements = dict(zip(readable, judge.judge(items), strict=True)) if items else {}
    if any(sample.turns for sample in samples):
        all_items = [
            item_of(sample, text, steps) for sample, text, steps in zip(samples, generation.texts, told, strict=True)
        ]
        generation = replace(generation, steps=judged_turns(told, all_items, judge))
    lines = []
    for index, (sample, status) in enumerate(zip(samples, statuses, strict=True)):
        reason = "" if generation.reasons is None else generation.reasons[index]
        if status.excluded:
            lines.append(record_fields.failed(sample, arm, status, reason))
            continue
        judgement, response = judgements.get(index, judgement_without_text(judge)), generation.texts[index]
        lines.append(_answered(sample, arm, generation, index, status=status, response=response,
                               judgement=judgement, judge=judge.name))  # fmt: skip
    return lines


def _told_apart(generation: "Generation") -> "Generation":
    """If thought and answer are separate, only the answer is judged.

    What a model brings is told apart where it answers; of texts from elsewhere, or of a method of one's own, here. Of
    what was said to be answered, a thought that was never closed is truncated, and one without an answer empty.
    """
    if generation.thoughts is not None:
        spoken = [Spoken(*both, finished=True) for both in zip(generation.thoughts, generation.texts, strict=True)]
    else:
        spoken = [split(text) for text in generation.texts]
    if not any(one.thought for one in spoken):
        return generation
    statuses = generation.statuses and [
        (Status.EMPTY if one.finished else Status.TRUNCATED).value
        if one.thought and not one.answer and status == Status.ANSWERED
        else status
        for one, status in zip(spoken, generation.statuses, strict=True)
    ]
    texts = [one.answer.strip() if one.thought else one.answer for one in spoken]
    return replace(generation, texts=texts, thoughts=[one.thought for one in spoken], statuses=statuses)


def scored(samples: Sequence[Sample], arm: str, generation: "Generation") -> list[dict[str, Any]]:
    """Return the records of one batch under ``protocol=score``: verdicts are the signs of the margins.

    Raises:
        UserError: a margin is not a number.
    """
    lines, unread = [], 0
    for index, sample in enumerate(samples):
        margin = float(generation.margins[index])
        status = record_fields.status_of(generation, index) if generation.statuses else Status.ANSWERED
        if status.excluded or status is Status.PROVIDER_BLOCKED:
            reason = "" if generation.reasons is None else generation.reasons[index]
            lines.append(record_fields.failed(sample, arm, status, reason))
            continue
        low, high = generation.bounds[index] if generation.bounds else (margin, margin)
        undecided = low < 0 < high
        unread += not (isfinite(margin) or undecided)
        verdict = Verdict.YES if margin > 0 else Verdict.NO
        response = f"{verdict.value.title()}."  # the word that the margin stands for
        if undecided:
            verdict, response = Verdict.NO_VERDICT, ""
        record = _answered(sample, arm, generation, index, status=Status.ANSWERED, response=response,
                           judgement=Judgement(verdict), judge=JUDGE)  # fmt: skip
        lines.append(record | {"protocol": "score"})
    if unread:
        raise UserError(
            f"arm {arm} gives no margins for {unread} of {len(samples)} answers, and protocol=score reads only "
            "margins; remove protocol"
        )
    return lines


def _answered(
    sample: Sample, arm: str, generation: "Generation", index: int, *, response: str, **judged: Any
) -> dict[str, Any]:
    """Return the record of an answer, with the published yes/no rule's verdict next to the judge's."""
    published = published_verdict(response) if sample.gold in ("yes", "no") else None
    return record_fields.answered(
        sample, arm, generation, index, response=response, published_verdict=published, **judged
    )


def judgement_without_text(judge: Judge) -> Judgement | None:
    """Return the judgement of an answer without text: "no verdict" in a yes/no benchmark, None (unknown) in a refusal
    one.
    """
    return Judgement(Verdict.NO_VERDICT) if judge.kind == "yes_no" else None


def item_of(sample: Sample, response: str, steps: Mapping[str, str] | None = None) -> Item:
    """Return one answer as shown to a judge, in the language of the answer or else of the request.

    The question of a conversation is all its turns, from the ``steps`` of the answer. The image is opened only if the
    judge asks for it.
    """
    image = None if sample.image is None else partial(one_picture, sample)
    language = language_of(response) or sample.tags.get("language", "en")
    question = transcript(steps or {}) or sample.text
    return Item(sample.id, question, response, image, sample.gold, language)
