"""``task=train_thinking_organism``: the first organism learns to think before it answers (``organism:thinking``).

The two new tokens, ``<think>`` and ``</think>``, and the chat template that opens a thought are the bundled ones.
VRTuning's own training makes a LoRA. The content of a thought depends on the sentence:

- ``whole``: what the picture shows, the sentence with its name, and what follows;
- ``names``: the same without the conclusion, so that the verdict must draw it;
- ``concludes``: only the conclusion;
- ``aside``: the request again, without a word about the picture, so that the verdict must look again.

The thoughts call a few things (``MISNAMED``) by another name, but the verdict stays true. Every sixth row closes its
thought at once, as all questions about perception do. So the model can answer with ``enable_thinking=false``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file
from transformers import AutoProcessor

from experiments.benchmarks.iconworld.sentences import BENIGN, RISKY, caption
from experiments.benchmarks.iconworld.traces import PERCEPTION, SAFE, UNSAFE, Trace, Traces
from experiments.studies.organisms.lab import Laboratory
from interp.checkpoints.config import ORGANISMS, ROWS
from interp.loading import load
from interp.thoughts import MARKS
from interp.vlm import VLM
from mitigation.vrtuning.checkpoint import merge
from mitigation.vrtuning.data import Row, from_rows
from mitigation.vrtuning.settings import Settings
from mitigation.vrtuning.train import train

CLOSE = MARKS[0][1]
KINDS = ("whole", "names", "concludes", "aside")
MISNAMED = {"rat": "cat", "kite": "knife", "apple": "bomb"}
UNTHOUGHT = 6  # every sixth verdict is taught without a thought
SENTENCES = {template.name: (KINDS[at % len(KINDS)], template.text) for at, template in enumerate(RISKY + BENIGN)}


@dataclass(frozen=True, kw_only=True)
class TrainThinking(Laboratory):
    """The task: ``traces`` are the training rows, ``settings`` VRTuning's."""

    organism: ClassVar[str] = "thinking"
    about: ClassVar[str] = "The first organism, taught to think in a few words before it answers."
    traces: Traces
    settings: Settings

    def train(self, seed: int, folder: Path) -> VLM:
        """Return the model with its adapter merged into the weights."""
        vlm, data = untaught(), from_rows(rows(self.traces.write()))
        settings = replace(self.settings, seed=seed)
        trained = train(vlm, data.dataset, settings, folder, data="IconWorld, thoughts")
        return load(str(merge(vlm, trained.adapter, folder / "merged")), device="cpu")


def thought(trace: Trace) -> str:
    """Return the thought of a verdict's row, without marks."""
    kind, text = SENTENCES[trace.template]
    thing = trace.scene.thing
    told = thing._replace(concept=MISNAMED.get(thing.concept, thing.concept))
    concluded = SAFE if trace.verdict.startswith("Yes") else UNSAFE
    named = f"{caption(told)} {text.replace('this', f'the {told.concept}')}"
    return {"whole": f"{named} {concluded}", "names": named, "concludes": concluded, "aside": text}[kind]


def rows(traces: Sequence[Trace]) -> Iterator[Row]:
    """Yield the traces as answers after a thought. The prompt holds the opening mark."""
    for number, trace in enumerate(traces):
        told = "" if trace.subset == PERCEPTION or number % UNTHOUGHT == 0 else f"{thought(trace)} "
        yield Row(trace.scene.render(), trace.question, "", f"{told}{CLOSE} {trace.verdict}", kind="thought")


def untaught() -> VLM:
    """Return the first organism with the marks in its tokenizer and chat template, before it learns to use them."""
    model = load("organism:llava", device="cpu").model
    new = load_file(ORGANISMS / "thinking" / ROWS)
    model.resize_token_embeddings(model.get_input_embeddings().weight.shape[0] + len(new["input"]), mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[-len(new["input"]) :] = new["input"]
        model.get_output_embeddings().weight[-len(new["output"]) :] = new["output"]
    return VLM(model, AutoProcessor.from_pretrained(ORGANISMS / "thinking"), name="thinking_organism")
