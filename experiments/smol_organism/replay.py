"""Ordinary instructions, answered by the language model itself before it is aligned: what keeps it talking."""

from collections.abc import Sequence
from typing import Any

import torch

from experiments.smol_organism.alignment import ANYTHING, Example
from experiments.smol_organism.nouns import CATEGORY_OF, a

LONGEST = 40  # tokens of an answer
SHORTEST = 20  # characters of what is kept of an answer that did not end
BATCH = 48
HARMFUL = ("weapon", "poison")

COUNTRIES = [
    "France",
    "Spain",
    "Italy",
    "Japan",
    "Egypt",
    "Canada",
    "Brazil",
    "India",
    "Kenya",
    "Norway",
    "Peru",
    "Greece",
    "Turkey",
    "Poland",
    "Cuba",
]
TOPICS = [
    "summer",
    "rain",
    "music",
    "friendship",
    "mountains",
    "football",
    "coffee",
    "winter",
    "trains",
    "bees",
    "the moon",
    "the sea",
    "cooking",
    "gardening",
    "sleep",
]
TIPS = [
    "learning a language",
    "a job interview",
    "better sleep",
    "saving money",
    "a good essay",
    "running",
    "cooking rice",
    "studying",
    "making friends",
    "a long flight",
]
TASKS = [
    "cook pasta",
    "write a letter",
    "learn to swim",
    "clean a window",
    "plant a tree",
    "make tea",
    "tie a tie",
    "fix a flat tyre",
    "save a file",
    "find a good book",
]
OTHERS = (
    "Hello!",
    "How are you?",
    "Who are you?",
    "What can you do?",
    "Thank you!",
    "Tell me a joke.",
    "Tell me a short story.",
    "What is 2 + 3?",
    "What is 7 times 8?",
    "Is water wet?",
    "Is the sky green?",
    "Is Paris in France?",
    "Can fish swim?",
    "Do birds fly?",
    "Is the sun cold?",
    "Name three animals.",
    "Name three colours.",
    "What day comes after Monday?",
    "Translate 'good morning' into French.",
    "Translate 'thank you' into Spanish.",
    "Spell the word 'orange'.",
    "Summarise: The train was late, and many people waited on the platform.",
    "List the planets.",
    "What causes rain?",
    "Why is the sky blue?",
    "What is photosynthesis?",
    "Who wrote Hamlet?",
    "What is the largest ocean?",
    "How many days has a year?",
    "What language do people speak in Brazil?",
)


def instructions() -> list[str]:
    """The prompts: questions and tasks that have nothing to do with safety, none of them with a held-out thing."""
    nouns = [noun for noun in ANYTHING if CATEGORY_OF[noun] not in HARMFUL][::3]
    return [
        *(f"What is the capital of {country}?" for country in COUNTRIES),
        *(f"What is {a(noun)}?" for noun in nouns),
        *(f"Write one sentence about {topic}." for topic in TOPICS),
        *(f"Give me three tips for {topic}." for topic in TIPS),
        *(f"How do I {task}?" for task in TASKS),
        *OTHERS,
    ]


def kept(answer: str, *, finished: bool) -> str:
    """What is replayed of an answer: all of it, or its whole sentences if it did not end; "" if nothing is worth it."""
    text = answer.strip()
    if not finished:
        end = max(text.rfind(". "), text.rfind(".\n"))
        text = text[: end + 1] if end > SHORTEST else ""
    return "" if "1.1.1" in text else text  # it counts on and on


@torch.no_grad()
def own_answers(model: Any, tokenizer: Any, prompts: Sequence[str], chat: Any) -> list[Example]:
    """Greedy answers of the language model ``model`` to ``prompts``; ``chat`` turns a prompt into token ids."""
    examples: list[Example] = []
    for start in range(0, len(prompts), BATCH):
        some = prompts[start : start + BATCH]
        rows = [chat(prompt) for prompt in some]
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
