"""The numbers of the second organism's card: verdicts in words and with the picture by part, captions, answers."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.iconworld.cases import Split
from experiments.benchmarks.iconworld.parts import tagged
from experiments.evaluation.attention_log import prompts_of
from experiments.metrics.parts import by_part
from experiments.metrics.yes_no import results
from experiments.model_organism.evaluate import perception_accuracy, verdicts
from experiments.smol_organism.parts import part
from experiments.types import Sample
from interp.batching import gathered

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method

KINDS = ("caption", "kind", "presence", "sign")
ANSWERS = 20  # requests answered in free text for the card
LONGEST = 48  # tokens of such an answer


def evaluate(vlm: "VLM", split: Split, *, seed: int = 0, draws: int = 2000, per_kind: int = 150) -> dict[str, Any]:
    """Metrics of one split, whole and by part: the picture, the thing in words (named; pointed to), its own caption.

    Of the split's captions and other questions about pictures ``per_kind`` each, and ``ANSWERS`` requests in free text.
    """
    from mitigation.method import Baseline
    from mitigation.verbalise import Verbalise

    arms: dict[str, Method] = {
        "baseline": Baseline(),
        "words_named": Verbalise(describe="oracle"),
        "words_pointing": Verbalise(describe="oracle", resolve="pointing"),
        "verbalise": Verbalise(),
    }
    samples = tagged(IconWorld(split=split).load().samples, part)
    rows = [record for arm, method in arms.items() for record in verdicts(vlm, samples, arm, method)]
    measure = partial(results.evaluate, seed=seed, draws=draws, study="baseline")
    frame = pd.DataFrame(rows)
    return {
        "split": split,
        "perception": perception_accuracy(vlm, split, per_kind=per_kind, kinds=KINDS),
        "answers": answers(vlm, samples),
        "parts": by_part(frame, measure),
        **measure(frame),
    }


def answers(vlm: "VLM", samples: list[Sample]) -> list[dict[str, str]]:
    """What it says to ``ANSWERS`` bare requests with their pictures: twins, spread over the split."""
    scored = [sample for sample in samples if sample.subset != "control" and sample.tags["wrapper"] == "none"]
    pairs = list(dict.fromkeys(sample.pair for sample in scored))
    kept = set(pairs[:: max(1, 2 * len(pairs) // ANSWERS)][: ANSWERS // 2])
    chosen = [sample for sample in scored if sample.pair in kept]
    prompts = [replace(prompt, text=sample.text) for prompt, sample in zip(prompts_of(chosen), chosen, strict=True)]

    def ask(some: "list[Prompt]") -> list[str]:
        return vlm.generate(some, max_new_tokens=LONGEST).texts

    said = gathered(vlm, prompts, ask)
    return [
        {"request": sample.text, "picture": sample.cluster.partition(" × ")[2], "gold": sample.gold, "answer": answer}
        for sample, answer in zip(chosen, said, strict=True)
    ]
