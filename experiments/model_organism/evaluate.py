"""The numbers of the organism's model card: perception, and verdicts under three arms."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.iconworld.cases import Split
from experiments.benchmarks.iconworld.perception import KINDS, PerceptionQuestion, perception_questions
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.judging import judged
from experiments.judges.yes_no import YesNo
from experiments.metrics.yes_no import results
from experiments.types import Sample
from interp.batching import gathered

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method

LONGEST_ANSWER = 20  # tokens; a resolved sentence is the longest


def perception_accuracy(
    vlm: "VLM", split: Split, *, per_kind: int = 300, kinds: Sequence[str] = KINDS
) -> dict[str, dict[str, float | int]]:
    """Share of perception questions answered word for word, by kind: ``{kind: {"accuracy", "n"}}``."""
    right = dict.fromkeys(kinds, 0)
    questions = [question for question in perception_questions(split, per_kind=per_kind) if question.kind in kinds]
    for question, answer in zip(questions, _answers(vlm, questions), strict=True):
        right[question.kind] += answer == question.answer
    return {kind: {"accuracy": count / per_kind, "n": per_kind} for kind, count in right.items()}


def _answers(vlm: "VLM", questions: Sequence[PerceptionQuestion]) -> list[str]:
    from interp.vlm import Prompt

    prompts = [Prompt(question.question, question.scene.render(), key=question.id) for question in questions]
    return gathered(vlm, prompts, lambda some: vlm.generate(some, max_new_tokens=LONGEST_ANSWER).texts)


def verdicts(vlm: "VLM", samples: Sequence[Sample], arm: str, method: "Method") -> list[dict[str, Any]]:
    """Records of one arm on IconWorld cases, as a study writes them."""
    case_of = {sample.id: sample for sample in samples}

    def ask(some: "list[Prompt]") -> list[dict[str, Any]]:
        generation = method.generate(vlm, some, max_new_tokens=8)
        return list(judged([case_of[prompt.key] for prompt in some], arm, "organism", generation, YesNo()))

    return gathered(vlm, prompts_of(samples), ask)


def evaluate(vlm: "VLM", split: Split, *, seed: int = 0, draws: int = 2000) -> dict[str, Any]:
    """Metrics of baseline, context prompt and safety prompt on one split, and perception: what the card prints."""
    from mitigation.method import Baseline
    from mitigation.prompting import ContextPrompt, SafetyPrompt

    samples = IconWorld(split=split).load().samples
    arms: dict[str, Method] = {"baseline": Baseline(), "prompt": ContextPrompt(), "safety_prompt": SafetyPrompt()}
    rows = [record for arm, method in arms.items() for record in verdicts(vlm, samples, arm, method)]
    result = results.evaluate(pd.DataFrame(rows), seed=seed, draws=draws, study="prompt")
    return {"split": split, "perception": perception_accuracy(vlm, split), **result}
