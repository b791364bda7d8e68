"""Training examples → model inputs. Each prompt has exactly the tokens of ``VLM.encode`` in evaluation.

TRL's collator never adds the tokenizer's begin token, which some checkpoints' templates omit (LLaVA-1.5). It reads the
end token from the chat template, which some omit too. With it, training and evaluation would have different prompts,
and the adapter would not learn to stop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interp.generation import appended
from interp.messages import as_seen
from interp.vlm import VLM, Prompt
from mitigation.vrtuning.data import bounded, messages_of

IGNORED = -100


@dataclass
class Collator:
    """Batches of dataset rows for ``SFTTrainer``, with ``labels`` on the completion only.

    Preference rows (``chosen``, ``rejected``) become TRL's batch for DPO: the rows of chosen answers, then the rows of
    rejected answers, with ``completion_mask`` instead of labels.
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
        pictures = [bounded(as_seen(image), self.max_pixels) for image in example["images"]]
        return Prompt(messages=messages_of(example, pictures))

    def completion_ids(self, prompt: Prompt, answer: str) -> list[int]:
        """Return the tokens of ``answer`` as a continuation of the rendered prompt, and the end token."""
        rendered = self.vlm.render(prompt)
        space = "" if rendered[-1:].isspace() else " "
        before, after = (self._ids(text) for text in (rendered, rendered + space + answer))
        if after[: len(before)] != before:  # the answer changes the prompt's last token: tokenize it separately
            before, after = [], self._ids(answer)
        return [*after[len(before) :], self._end()]

    def _ids(self, text: str) -> list[int]:
        return list(self.vlm.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _end(self) -> int:
        """Return the token that ``VLM.generate`` stops at; the tokenizer's own if the checkpoint has several."""
        speaker = self.vlm.model.get_submodule(self.vlm.module_map.lm_head.rpartition(".")[0])
        preferred, ends = self.vlm.tokenizer.eos_token_id, speaker.generation_config.eos_token_id
        stops = [ends] if isinstance(ends, int) else list(ends or [preferred])
        return int(preferred if preferred in stops else stops[0])
