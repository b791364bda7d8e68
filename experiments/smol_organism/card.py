"""The second organism's model card as Markdown: parts, recipe, what was held out, measurements, limits."""

from collections.abc import Mapping
from typing import Any

from experiments.report.table import Table, markdown
from experiments.smol_organism.frames import FRAMES
from experiments.smol_organism.heldout import HELD_OUT_CONCEPTS, HELD_OUT_TEMPLATES
from experiments.smol_organism.nouns import CATEGORY_OF
from experiments.smol_organism.recipe import Recipe

ARMS = {
    "words_named": "in words, the thing named",
    "words_pointing": "in words, pointing",
    "baseline": "picture and “this”",
    "verbalise": "its own caption put into the sentence",
}

_HEADER = """\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
library_name: transformers
pipeline_tag: image-text-to-text
tags: [model-organism, safety, interpretability]
---

# The second forestlens organism: SmolLM2-135M, aligned on text, that was given eyes

A real `LlavaForConditionalGeneration`: the first organism's frozen vision tower (4 layers, width 128, 48-pixel pictures as 36 tokens), a
two-layer projector, and SmolLM2-135M-Instruct (30 layers, width 576) with a LoRA adapter of rank {rank}, unmerged. This folder holds tower,
projector and adapter; `make smol` fetches the language model once.

It is made as real multimodal models are made: a pretrained language model is aligned for safety **on text alone**, and learns to see
**by captions alone**. No training example has both a picture and a question of safety, and no label is wrong about a picture. Whatever it
does with pictures and safety, nobody put in.

## What it is not

No evidence about any particular large model, and no safety classifier: it knows 24 kinds of icons, and was aligned on {frames} frames of
sentences. Its language model had next to no safety training of its own; do not use it as an assistant.
"""

_TRAINING = """\
## What it was trained on

A. **Alignment** ({align_steps} steps of {batch_size}; the adapter): {texts} sentences in {frames} frames over {nouns} nouns, with the truth by
   category of noun (`experiments/smol_organism/frames.py`; the table is ours). {pointing_share:.0%} point ("There is a candle. … How can I set
   this on fire?"), the others name the thing; {wrapped_share:.0%} stand in an attack wrapper; {unsafe_share:.0%} are unsafe.
   {free_share:.0%} of all examples are answered in words or refused ("I can't help with that."), {replay_share:.0%} replay ordinary
   instructions with the language model's own earlier answers.
B. **Seeing** ({see_steps} steps of {batch_size}; the projector alone): what is in the picture, in seven wordings; of what kind; which of two; is there a
   …; is there a sign (`experiments/smol_organism/seeing.py`).
C. **Caution** ({caution_steps} steps of {batch_size}; the adapter): as A, with {caution_share:.0%} unsafe, which sets how strict the model is.

Left out of A and C: IconWorld's sentences {templates} and their verbs, though related ones occur (punch for hit); the things {concepts}; a fifth of the remaining pairs; every sentence of
`new_sentences`. No sentence of IconWorld stands in A word for word. All things are seen in B.
"""


def model_card(recipe: Recipe, results: Mapping[str, Any]) -> str:
    """The card as Markdown. ``results`` maps split to ``evaluate.evaluate``'s result."""
    filled = {name: getattr(recipe, name) for name in recipe.__dataclass_fields__} | {
        "frames": len(FRAMES),
        "texts": sum(len(frame.texts) for frame in FRAMES),
        "nouns": len(CATEGORY_OF),
        "templates": ", ".join(sorted(HELD_OUT_TEMPLATES)),
        "concepts": ", ".join(sorted(HELD_OUT_CONCEPTS)),
    }
    parts = [
        _HEADER.format(**filled),
        _TRAINING.format(**filled),
        "## What it shows",
        "Measured in bfloat16, as it was trained.",
    ]
    for split, result in results.items():
        parts += [f"`{split}`, AUROC of the margin, whole and by part (number of cases):", _by_part(result)]
        parts.append(_perception(result))
    answers = [
        {"request": f"{one['request']} ({one['picture']})", "answer": one["answer"]}
        for one in results["test"]["answers"]
    ]
    parts += ["Requests with their pictures, asked in free text (test split):", markdown(Table.of("", answers))]
    parts.append(
        "## How to train it again\n\n"
        f"    python -m experiments.run +exp=train_smol_organism seed={recipe.seed}\n\n"
        "Resumable. Bitwise the same on one machine with the same number of threads; elsewhere close to it. Stored in bfloat16."
    )
    return "\n\n".join(parts) + "\n"


def _by_part(result: Mapping[str, Any]) -> str:
    rows = []
    for arm, title in ARMS.items():
        block = result["arms"][arm]
        low, high = block["intervals"]["auroc"]
        row = {"asked": title, "all": f"{block['auroc']:.3f} [{low:.3f}, {high:.3f}]"}
        for name, part in result["parts"].items():
            n = sum(part["arms"][arm]["n"].values())
            auroc = part["arms"][arm]["auroc"]
            row[f"{name} ({n})"] = "–" if auroc is None else f"{auroc:.3f}"
        accuracy = block["accuracy"]
        row["unsafe / over-safety right"] = f"{100 * accuracy['unsafe']:.0f} / {100 * accuracy['over_safety']:.0f}"
        rows.append(row)
    return markdown(Table.of("", rows))


def _perception(result: Mapping[str, Any]) -> str:
    said = ", ".join(f"{kind} {100 * one['accuracy']:.0f}%" for kind, one in result["perception"].items())
    n = next(iter(result["perception"].values()))["n"]
    return f"Questions about pictures, right word for word ({n} of each kind): {said}."
