"""What a model sees: how often it answers questions about IconWorld's pictures word for word."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.benchmarks.iconworld.cases import Split
from experiments.benchmarks.iconworld.perception import KINDS, perception_questions

if TYPE_CHECKING:
    from interp.vlm import VLM

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
