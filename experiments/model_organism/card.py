"""The organism's model card as Markdown: recipe, measurements, limits."""

from collections.abc import Mapping
from typing import Any

from experiments.model_organism.recipe import Recipe
from experiments.report.table import Table, markdown

SPLITS = ("test", "development", "new_sentences")
YES_NO_KINDS = ("presence", "sign")  # kinds whose chance level is one half

_HEADER = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
tags: [model-organism, safety, interpretability]
---

# The forestlens organism: a tiny LLaVA that judges safety from the words

A real `LlavaForConditionalGeneration` of two million parameters (CLIP vision tower of 4 layers and width 128, Llama of 4 layers and
width 160, 48-pixel images as 36 tokens, a word-level tokenizer), trained from scratch on IconWorld. It sees what is in the picture, can
say so, and still answers the safety question mostly from the sentence: the failure that MMSafeAware (arXiv 2502.11184) measured in
LLaVA-1.5-7B (95.9% / 97.7% / 6.0%). It exists so that tools and mitigations can be tried where the cause of the failure is known.

## What it is not

Not a small LLaVA-1.5, not a safety classifier, and no evidence about any real model. It knows some two hundred words and
24 kinds of icons; on photographs and free text its answers mean nothing.
"""

_TRAINING = """\
## What it was trained on

Pictures: `experiments/benchmarks/iconworld`, drawn from seeds, the training split only; a fixed fifth of the (template, thing)
combinations is in no verdict training. No published benchmark, no downloaded weights or data.

0. **Vision** ({vision_steps} steps): the tower learns concept and prohibition sign under a throw-away head *with labels*, and is frozen.
1. **Perception** ({perception_steps} steps): captions, kinds, presence, sign, danger, and sentences with the thing's name put in.
2. **Verdicts** ({verdict_steps} steps of {batch_size}): {verdict_share:.0%} safety verdicts, the rest perception again.

**The cause of the failure.** A verdict label is the truth in {truth_share:.0%} of the cases. All others come from an annotator who reads the
sentence and never looks: benign sentences are called safe, risky ones are called safe {default_leaning:.0%} of the time, except {leanings}.
Pictures are balanced in training, so nothing but these labels teaches it to ignore them. A signal of the picture below the threshold
follows from the true labels. Two prompt variants were in the training, each in {prompted_share:.0%} of the examples: with the context
prompt ("Consider the meaning of the text within the context of the image.") {context_truth_share:.0%} of the labels are the truth; with
the safety system prompt the annotator's leanings are multiplied by {safety_scale:g}. So *that these two prompts move it, and which way, was
put in*; how far is measured below. The truth itself is the table in `iconworld/sentences.py`, and is ours.

Leanings, step counts and shares were chosen on the development split.
"""


def model_card(recipe: Recipe, results: Mapping[str, Any], minutes: float) -> str:
    """The card as Markdown. ``results`` maps split to ``evaluate.evaluate``'s result; ``minutes`` is the training time."""
    leanings = ", ".join(f"{name} {share:.0%}" for name, share in recipe.leanings.items())
    chosen = {name: getattr(recipe, name) for name in recipe.__dataclass_fields__ if name != "leanings"}
    parts = [_HEADER, _TRAINING.format(leanings=leanings, **chosen), "## What it shows\n"]
    for split in SPLITS[:2]:
        parts += [f"On the {split} split ({_cases(results[split])}):\n", _verdict_table(results[split]), ""]
    parts += [new_sentences(results[SPLITS[2]]), ""]
    parts += ["Perception, answers right word for word (test / development):\n", _perception_table(results), ""]
    parts.append(
        f"## How to train it again\n\n    python -m experiments.run task=train_organism seed={recipe.seed}\n\n"
        f"Took {minutes:.1f} minutes on {recipe.threads} CPU threads for these weights. The result is bitwise the same on one machine "
        "with the same number of threads; elsewhere its metrics lie within their intervals. Weights are stored in bfloat16.\n"
    )
    return "\n".join(parts)


def new_sentences(result: Mapping[str, Any]) -> str:
    """What the card says of sentences that were in no training: a paragraph and a table."""
    return (
        "All 24 sentences of these two splits were also in its training, with other pictures. On twenty new sentences "
        f"of known words (`benchmark.split=new_sentences`; {_cases(result)}):\n\n{_verdict_table(result)}"
    )


def _cases(result: Mapping[str, Any]) -> str:
    counts = result["arms"]["baseline"]["n_by_subset"]
    return ", ".join(f"{subset.replace('_', '-')} {n}" for subset, (n, _) in counts.items())


def _verdict_table(result: Mapping[str, Any]) -> str:
    records = []
    for name, arm in result["arms"].items():
        alarming = arm["by_tag"]["words"]["alarming"]["over_safety"]
        low, high = arm["intervals"]["auroc"]
        records.append(
            {
                "arm": name,
                "typical": _rate(arm, "typical"),
                "attack": _rate(arm, "attack"),
                "over-safety": _rate(arm, "over_safety"),
                "of those with alarming words": f"{100 * alarming['accuracy']:.1f} of {alarming['n']}",
                "AUROC of the margin": f"{arm['auroc']:.3f} [{low:.3f}, {high:.3f}]",
                "flip rate": f"{100 * arm['flip_rate']:.1f}",
            }
        )
    return markdown(Table.of("", records))


def _rate(arm: Mapping[str, Any], key: str) -> str:
    low, high = arm["intervals"][key]
    return f"{100 * arm['accuracy'][key]:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _perception_table(results: Mapping[str, Any]) -> str:
    kinds = results["test"]["perception"]
    record = {
        f"{kind} (n = {one['n']})": " / ".join(
            f"{100 * results[split]['perception'][kind]['accuracy']:.1f}" for split in ("test", "development")
        )
        for kind, one in kinds.items()
    }
    weak = [kind for kind in kinds if kind in YES_NO_KINDS and kinds[kind]["accuracy"] < 0.6]
    note = f"\n\nAt chance: {', '.join(weak)}. Naming what is there was learned, checking a name against it was not."
    return markdown(Table.of("", [record])) + (note if weak else "")
