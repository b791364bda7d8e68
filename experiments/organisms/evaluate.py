"""The numbers of an organism's card: verdicts under its arms, whole and by part, perception, answers in free text."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.iconworld.cases import Split
from experiments.benchmarks.iconworld.parts import tagged
from experiments.benchmarks.iconworld.perception import KINDS
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.judging import judge_batch
from experiments.evaluation.perception import perception_accuracy
from experiments.judges.yes_no import YesNo
from experiments.metrics.parts import by_part
from experiments.metrics.yes_no import results
from experiments.organisms.held_out import part
from experiments.types import Sample
from mitigation.method import Baseline
from mitigation.prompting import ContextPrompt, SafetyPrompt
from mitigation.verbalise import Verbalise

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method

SPLITS: tuple[Split, ...] = ("development", "test", "new_sentences")
ARMS: dict[str, "dict[str, Method]"] = {
    "llava": {"baseline": Baseline(), "prompt": ContextPrompt(), "safety_prompt": SafetyPrompt()},
    "smol": {
        "words_named": Verbalise(describe="oracle"),
        "words_pointing": Verbalise(describe="oracle", resolve="pointing"),
        "baseline": Baseline(),
        "verbalise": Verbalise(),
    },
}
ASKED = {"llava": KINDS, "smol": ("caption", "kind", "presence", "sign")}  # of the pictures
ANSWERS = 20  # requests that the second answers in free text
LONGEST = 48  # tokens of such an answer


def evaluate(
    vlm: "VLM", split: Split, organism: str, *, seed: int = 0, draws: int = 2000, per_kind: int = 300
) -> dict[str, Any]:
    """Metrics of one split, and ``per_kind`` questions of each kind about pictures; of the second organism also by part
    and with answers in free text."""
    samples, worded = IconWorld(split=split).load().samples, organism == "smol"
    samples = tagged(samples, part) if worded else samples
    rows = [record for arm, method in ARMS[organism].items() for record in verdicts(vlm, samples, arm, method)]
    measure = partial(results.evaluate, seed=seed, draws=draws, study="baseline" if worded else "prompt")
    frame = pd.DataFrame(rows)
    return {
        "split": split,
        "perception": perception_accuracy(vlm, split, per_kind=per_kind, kinds=ASKED[organism]),
        "answers": answers(vlm, samples) if worded else [],
        "parts": by_part(frame, measure),
        **measure(frame),
    }


def verdicts(vlm: "VLM", samples: Sequence[Sample], arm: str, method: "Method") -> list[dict[str, Any]]:
    """Records of one arm on IconWorld cases, as a study writes them."""
    case_of = {sample.id: sample for sample in samples}

    def ask(some: "list[Prompt]") -> list[dict[str, Any]]:
        generation = method.generate(vlm, some, max_new_tokens=8)
        return list(judge_batch([case_of[prompt.key] for prompt in some], arm, "organism", generation, YesNo()))

    return vlm.batches.gathered(prompts_of(samples), ask)


def answers(vlm: "VLM", samples: Sequence[Sample]) -> list[dict[str, str]]:
    """What it says to ``ANSWERS`` bare requests with their pictures: twins, spread over the split."""
    scored = [sample for sample in samples if sample.subset != "control" and sample.tags["wrapper"] == "none"]
    pairs = list(dict.fromkeys(sample.pair for sample in scored))
    kept = set(pairs[:: max(1, 2 * len(pairs) // ANSWERS)][: ANSWERS // 2])
    chosen = [sample for sample in scored if sample.pair in kept]
    prompts = [replace(prompt, text=sample.text) for prompt, sample in zip(prompts_of(chosen), chosen, strict=True)]
    responses = vlm.batches.gathered(prompts, lambda some: vlm.generate(some, max_new_tokens=LONGEST).texts)
    return [
        {"request": f"{sample.text} ({sample.cluster.partition(' × ')[2]})", "answer": answer}
        for sample, answer in zip(chosen, responses, strict=True)
    ]
