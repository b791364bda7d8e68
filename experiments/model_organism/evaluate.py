"""The numbers of the organism's model card: perception, and verdicts under three arms."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.iconworld.cases import Split
from experiments.benchmarks.iconworld.perception import KINDS, PerceptionQuestion, perception_questions
from experiments.benchmarks.images import open_image
from experiments.evaluation.answer import judged
from experiments.evaluation.batching import batches
from experiments.judges.yes_no import YesNo
from experiments.metrics.yes_no import results
from experiments.types import Sample

if TYPE_CHECKING:
    from interp.vlm import VLM
    from mitigation.method import Method

LONGEST_ANSWER = 20  # tokens; a resolved sentence is the longest


def perception_accuracy(
    vlm: "VLM", split: Split, *, per_kind: int = 300, kinds: Sequence[str] = KINDS, batch_size: int = 60
) -> dict[str, dict[str, float | int]]:
    """Share of perception questions answered word for word, by kind: ``{kind: {"accuracy", "n"}}``."""
    right = dict.fromkeys(kinds, 0)
    questions = [question for question in perception_questions(split, per_kind=per_kind) if question.kind in kinds]
    for batch in batches(questions, batch_size):
        for question, answer in zip(batch, _answers(vlm, batch), strict=True):
            right[question.kind] += answer == question.answer
    return {kind: {"accuracy": count / per_kind, "n": per_kind} for kind, count in right.items()}


def _answers(vlm: "VLM", batch: Sequence[PerceptionQuestion]) -> list[str]:
    from interp.vlm import Prompt

    prompts = [Prompt(question.question, question.scene.render(), key=question.id) for question in batch]
    return vlm.generate(prompts, max_new_tokens=LONGEST_ANSWER).texts


def verdicts(
    vlm: "VLM", samples: Sequence[Sample], arm: str, method: "Method", *, batch_size: int = 64
) -> list[dict[str, Any]]:
    """Records of one arm on IconWorld cases, as a study writes them."""
    from interp.vlm import Prompt

    found: list[dict[str, Any]] = []
    for batch in batches(samples, batch_size):
        prompts = []
        for sample in batch:
            assert sample.image is not None
            prompts.append(Prompt(sample.prompt, open_image(sample.image), key=sample.id))
        generation = method.generate(vlm, prompts, max_new_tokens=8)
        found += judged(batch, arm, "organism", generation, YesNo())
    return found


def evaluate(vlm: "VLM", split: Split, *, seed: int = 0, draws: int = 2000) -> dict[str, Any]:
    """Metrics of baseline, context prompt and safety prompt on one split, and perception: what the card prints."""
    from mitigation.method import Baseline
    from mitigation.prompting import ContextPrompt, SafetyPrompt

    samples = IconWorld(split=split).load().samples
    arms: dict[str, Method] = {"baseline": Baseline(), "prompt": ContextPrompt(), "safety_prompt": SafetyPrompt()}
    rows = [record for arm, method in arms.items() for record in verdicts(vlm, samples, arm, method)]
    result = results.evaluate(pd.DataFrame(rows), seed=seed, draws=draws, study="prompt")
    return {"split": split, "perception": perception_accuracy(vlm, split), **result}
