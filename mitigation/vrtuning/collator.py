"""Training examples → model inputs. Each prompt has exactly the tokens of ``VLM.encode`` in evaluation.

TRL's own collator never adds the tokenizer's begin token, which some checkpoints' templates omit (LLaVA-1.5), and takes
the end token from the chat template, which some omit too. The adapter would be trained on prompts that differ from
those in evaluation, and would not learn to stop.

Distillation has one loss for all rows, KL(target ‖ adapted) at each token of an answer. The target is the distribution
of the model without the adapter; at the verdict of a row with a margin, Yes and No share their mass as that margin
says. So the rest of what the model says is held.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from interp.generation import appended
from interp.pictures import as_seen
from interp.vlm import VLM, Prompt
from mitigation.vrtuning.data import MARGIN, bounded

IGNORED = -100


@dataclass
class Collator:
    """Batches of dataset rows for ``SFTTrainer``, with ``labels`` on the completion only.

    Preference rows (``chosen``, ``rejected``) become TRL's batch for DPO: the rows of chosen answers, then those of
    rejected ones, with ``completion_mask`` instead of labels.
    """

    vlm: VLM
    max_pixels: int | None = None

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        answers = ("chosen", "rejected") if "chosen" in examples[0] else ("completion",)
        prompts = [self._prompt(example) for example in examples]
        tails = [
            self.completion_ids(prompt, example[name][-1]["content"])
            for name in answers
            for prompt, example in zip(prompts, examples, strict=True)
        ]
        encoded = self.vlm.encode(prompts * len(answers))
        pad = self.vlm.tokenizer.pad_token_id
        batch = appended(encoded, tails, pad=pad, side="right", kind=self.vlm.answer_kind)
        lengths = batch["attention_mask"].sum(-1)
        columns = torch.arange(batch["input_ids"].shape[1], device=lengths.device)
        starts = lengths - lengths.new_tensor([len(tail) for tail in tails])
        completion = (columns >= starts[:, None]) & (columns < lengths[:, None])
        if len(answers) == 2:
            return batch | {"completion_mask": completion.long()}
        return batch | {"labels": batch["input_ids"].masked_fill(~completion, IGNORED)}

    def _prompt(self, example: Mapping[str, Any]) -> Prompt:
        texts = {message["role"]: message["content"] for message in example["prompt"]}
        image = bounded(as_seen(example["images"][0]), self.max_pixels) if example["images"] else None
        return Prompt(texts["user"], image, system=texts.get("system"))

    def completion_ids(self, prompt: Prompt, answer: str) -> list[int]:
        """The tokens of ``answer`` as a continuation of the rendered prompt, and the end token."""
        rendered = self.vlm.render(prompt)
        space = "" if rendered[-1:].isspace() else " "
        before, after = (self._ids(text) for text in (rendered, rendered + space + answer))
        if after[: len(before)] != before:  # the answer changes the prompt's last token: tokenize it separately
            before, after = [], self._ids(answer)
        return [*after[len(before) :], self._end()]

    def _ids(self, text: str) -> list[int]:
        return list(self.vlm.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _end(self) -> int:
        """The token that ``VLM.generate`` stops at; the tokenizer's own if the checkpoint has several."""
        speaker = self.vlm.model.get_submodule(self.vlm.layout.lm_head.rpartition(".")[0])
        own, ends = self.vlm.tokenizer.eos_token_id, speaker.generation_config.eos_token_id
        known = [ends] if isinstance(ends, int) else list(ends or [own])
        return int(own if own in known else known[0])


@dataclass
class DistillationCollator(Collator):
    """Batches of rows with a column ``margin`` (NaN for a row that is held), and the loss of ``Trainer`` on them."""

    hold: float = 1.0

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        batch = super().__call__(examples)
        margins = torch.tensor([example[MARGIN] for example in examples], dtype=torch.float32)
        return batch | {MARGIN: margins.to(batch["labels"].device)}

    def loss(self, model: Any, batch: Mapping[str, Any], *_: Any, **__: Any) -> Float[Tensor, ""]:
        """The mean divergence of the verdicts, and ``hold`` times that of all other tokens."""
        inputs = dict(batch)
        labels, margins = inputs.pop("labels"), inputs.pop(MARGIN)
        rows, columns = (labels[:, 1:] != IGNORED).nonzero(as_tuple=True)  # a logit is of the next column's token
        first = torch.ones_like(rows, dtype=torch.bool)
        first[1:] = rows[1:] != rows[:-1]
        verdict = first & ~margins[rows].isnan()
        kept = sorted(
            set(columns.tolist())
        )  # of the others no logits are worked out, where the family can leave them out
        place = torch.tensor([kept.index(column) for column in columns.tolist()])

        def said() -> Float[Tensor, "token vocab"]:
            logits = model(**inputs, logits_to_keep=kept, use_cache=False).logits
            return logits[rows, place if logits.shape[1] == len(kept) else columns].float().log_softmax(-1)

        with torch.no_grad(), model.disable_adapter():
            own = said()
        own[verdict] = shared_out(own[verdict], margins[rows[verdict]], *self.vlm.answer_ids)
        got = said()
        divergence = (own.exp() * (own - got)).sum(-1)
        parts = ((1.0, divergence[verdict]), (self.hold, divergence[~verdict]))
        return torch.stack([weight * part.mean() for weight, part in parts if len(part)]).sum()


def shared_out(
    logs: Float[Tensor, "row vocab"], margins: Float[Tensor, " row"], yes: Sequence[int], no: Sequence[int]
) -> Float[Tensor, "row vocab"]:
    """Log-probabilities whose Yes/No margin is ``margins``; the mass of both together and all others stay."""
    mass = {name: logs[:, list(ids)].logsumexp(-1) for name, ids in (("yes", yes), ("no", no))}
    both = torch.logaddexp(mass["yes"], mass["no"])
    found = logs.clone()
    found[:, list(yes)] += (both + logsigmoid(margins) - mass["yes"])[:, None]
    found[:, list(no)] += (both + logsigmoid(-margins) - mass["no"])[:, None]
    return found
