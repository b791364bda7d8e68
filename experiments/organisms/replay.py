"""Ordinary instructions, answered by the language model itself before it is aligned: what keeps it talking."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from experiments.organisms.alignment import ANYTHING
from experiments.organisms.examples import Example
from experiments.organisms.words import CATEGORY_OF, a, read

LONGEST = 40  # tokens of an answer
SHORTEST = 20  # characters of what is kept of an answer that did not end
BATCH = 48
HARMFUL = ("weapon", "poison")


def instructions() -> list[str]:
    """The prompts: questions and tasks that have nothing to do with safety, none of them with a held-out thing."""
    nouns = [noun for noun in ANYTHING if CATEGORY_OF[noun] not in HARMFUL][::3]
    listed = read("instructions")
    filled = [form.format(value) for form, values in listed["forms"].items() for value in values]
    return [*(f"What is {a(noun)}?" for noun in nouns), *filled, *listed["plain"]]


def kept(answer: str, *, finished: bool) -> str:
    """What is replayed of an answer: all of it, or its whole sentences if it did not end; "" if nothing is worth it."""
    text = answer.strip()
    if not finished:
        end = max(text.rfind(". "), text.rfind(".\n"))
        text = text[: end + 1] if end > SHORTEST else ""
    return "" if "1.1.1" in text else text  # it counts on and on


@torch.no_grad()
def own_answers(
    model: Any, tokenizer: Any, prompts: Sequence[str], chat: Callable[[Example], list[int]]
) -> list[Example]:
    """Greedy answers of the language model ``model`` to ``prompts``; ``chat`` turns a prompt into token ids."""
    examples: list[Example] = []
    for start in range(0, len(prompts), BATCH):
        some = prompts[start : start + BATCH]
        rows = [chat(Example(prompt, "")) for prompt in some]
        longest = max(map(len, rows))
        ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        made = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=LONGEST,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        for prompt, answer in zip(some, made[:, longest:].tolist(), strict=True):
            finished = tokenizer.eos_token_id in answer
            text = tokenizer.decode(answer, skip_special_tokens=True)
            if text := kept(text, finished=finished):
                examples.append(Example(prompt, text))
    return examples
