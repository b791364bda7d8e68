"""Conversations of a run: earlier answers that an arm gives itself, and what records say of the turns."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from experiments.types import Item, Judge, Sample
from interp.messages import Message

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import Generation

TURN = "turn {}, {}"  # the name of a turn in ``steps`` of a record
JUDGED = "turn {}, verdict"


def rolled_out(generate: "Callable[[Sequence[Prompt]], Generation]", prompts: "Sequence[Prompt]") -> "list[Prompt]":
    """Return the prompts with an answer by ``generate`` in each turn of the assistant that has none, in their order.

    Prompts with other numbers of pictures before a turn are asked separately.
    """
    done = list(prompts)
    while waiting := {row: turn for row, prompt in enumerate(done) if (turn := _first_open(prompt)) is not None}:
        groups: dict[int, dict[int, Prompt]] = {}
        for row, turn in waiting.items():
            before = replace(done[row], key=f"{done[row].key}\nturn {turn}", request="", shows="", answer_prefix=())
            before = before.with_turns(done[row].turns[:turn])
            groups.setdefault(len(before.images), {})[row] = before
        for group in groups.values():
            for row, text in zip(group, generate(list(group.values())).texts, strict=True):
                turns = list(done[row].turns)
                turns[waiting[row]] = Message("assistant", (text,))
                done[row] = done[row].with_turns(turns)
    return done


def with_answers(sample: Sample, record: Mapping[str, Any]) -> Sample:
    """Return the case with the earlier answers that its ``record`` has, "" where it has none."""
    steps = record.get("steps") or {}
    turns = [
        turn if turn.parts else Message(turn.role, (steps.get(TURN.format(number, turn.role), ""),))
        for number, turn in enumerate(sample.turns, 1)
    ]
    return replace(sample, turns=tuple(turns))


def noted(generation: "Generation", prompts: "Sequence[Prompt]") -> "Generation":
    """Return the generation with the turns of conversations among its ``steps``."""
    if not any(prompt.messages for prompt in prompts):
        return generation
    steps = []
    for row, prompt in enumerate(prompts):
        names = (f"[picture {number}]" for number in count(1))
        told = {
            TURN.format(number, turn.role): turn.mapped(lambda _: next(names)).text  # noqa: B023
            for number, turn in enumerate(prompt.messages, 1)
        }
        steps.append(told | dict(generation.steps[row] if generation.steps else {}))
    return replace(generation, steps=steps)


def judged_turns(steps: Sequence[Mapping[str, str]], items: Sequence[Item], judge: Judge) -> list[dict[str, str]]:
    """Return the steps with a verdict after each earlier answer; ``items`` belong to the last answers."""
    earlier = [
        (row, number, replace(item, question=transcript(told, upto=number), response=text))
        for row, (told, item) in enumerate(zip(steps, items, strict=True))
        for number in range(2, len(told) + 1)
        if (text := told.get(TURN.format(number, "assistant"), "").strip())
    ]
    results = [dict(told) for told in steps]
    if judge.kind == "refusal" and earlier:
        for (row, number, _), judgement in zip(earlier, judge.judge([item for *_, item in earlier]), strict=True):
            results[row][JUDGED.format(number)] = judgement.verdict.value
    return results


def transcript(steps: Mapping[str, str], upto: int | None = None) -> str:
    """Return a conversation for a judge, from the steps of a record; "" without turns. ``upto``: turns before it."""
    named = [(re.fullmatch(r"turn (\d+), (user|assistant)", name), text) for name, text in steps.items()]
    turns = sorted((int(match[1]), match[2].title(), text) for match, text in named if match)
    return "\n".join(f"{role}: {text}" for number, role, text in turns if upto is None or number < upto)


def _first_open(prompt: "Prompt") -> int | None:
    return next((index for index, turn in enumerate(prompt.turns) if not turn.parts), None)
