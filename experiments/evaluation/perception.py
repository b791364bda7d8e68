"""What a model sees: its captions of a study's cases, and questions about IconWorld's pictures."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.benchmarks.iconworld.cases import Split
from experiments.benchmarks.iconworld.perception import KINDS, perception_questions
from experiments.evaluation.answer import Answering
from experiments.evaluation.study import Study
from experiments.runs.records import current
from experiments.types import Sample

if TYPE_CHECKING:
    from interp.vlm import VLM

CAPTIONS_FILE = "captions.jsonl"
LONGEST_ANSWER = 20  # tokens; a resolved sentence is the longest


def perception_accuracy(
    vlm: "VLM", split: Split, *, per_kind: int = 300, kinds: Sequence[str] = KINDS
) -> dict[str, dict[str, float | int]]:
    """Share of perception questions answered word for word, by kind: ``{kind: {"accuracy", "n"}}``."""
    from interp.vlm import Prompt

    questions = [question for question in perception_questions(split, per_kind=per_kind) if question.kind in kinds]
    prompts = [Prompt(question.question, question.scene.render(), key=question.id) for question in questions]
    answers = vlm.batches.gathered(prompts, lambda some: vlm.generate(some, max_new_tokens=LONGEST_ANSWER).texts)
    right = dict.fromkeys(kinds, 0)
    for question, answer in zip(questions, answers, strict=True):
        right[question.kind] += answer == question.answer
    return {kind: {"accuracy": count / per_kind, "n": per_kind} for kind, count in right.items()}


def captions(work: Study, questions: Sequence[Sample], *, longest: int) -> dict[str, str]:
    """Case → the baseline's answer to its question about the picture, of ``longest`` tokens or the run's limit.

    Records are in captions.jsonl; a case without an answer is left out.
    """
    run, store = work.run, work.store
    asked = replace(run, protocol="generate", max_new_tokens=max(run.max_new_tokens, longest))
    Answering(asked, work.vlm, store, work.console).answer(
        {"caption": run.arms["baseline"]}, questions, file=CAPTIONS_FILE, labels={"caption": "captions"}
    )
    records = current(store.records(CAPTIONS_FILE))
    return {record["case"]: record["response"] for record in records if record["response"] is not None}
