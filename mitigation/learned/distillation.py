"""Distillation of verdicts in words into an adapter: the rows, and what is written down of the training.

The loss is ``mitigation.vrtuning.collator.DistillationCollator.loss``.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from interp.errors import UserError
from mitigation.learned.drift_fitting import exchanged
from mitigation.reference_resolution import SPOKEN_OF, parts, phrase
from mitigation.steps import Steps
from mitigation.vrtuning.checkpoint import adapter_hash
from mitigation.vrtuning.data import MARGIN, VERDICT, Row, data_digest, from_rows
from mitigation.vrtuning.model import adapted
from mitigation.vrtuning.settings import Settings
from mitigation.vrtuning.train import processes, train
from mitigation.wrappers import unwrapped

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

PERCEPTION = "perception"


def distil(
    vlm: "VLM", prompts: "Sequence[Prompt]", settings: Any, folder: Path, name: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Trains the adapter of ``mitigation.learned.distilled`` into a folder of ``folder``; tensors and description.

    The folder's name begins with ``name`` and ends with a hash of what is taught, so that an interrupted training goes
    on and another one gets a folder of its own.

    Raises:
        UserError: several processes, captions that are all alike for the control, or as ``train``.
    """
    if processes() > 1:
        raise UserError(f"{processes()} processes; a study trains this adapter in one; start it without a launcher")
    model, most = unwrapped(vlm), settings.steps * settings.batch_size // 2  # cases that are seen once, of those given
    if len(prompts) > max(most, 2):
        prompts = random.Random(settings.seed).sample(list(prompts), max(most, 2))
    descriptions = vlm.batches.gathered(prompts, lambda some: _described(vlm, some, settings))
    said = descriptions
    if settings.control == "shuffled":
        said = exchanged(descriptions, prompts, sorted(set(descriptions)), settings.seed)
    in_words = [settings.words.last_question(*one).prompt for one in zip(prompts, said, strict=True)]
    teacher, plain = (vlm.batches.scores(some) for some in (in_words, prompts))
    held = held_prompts(prompts, descriptions, settings.held, settings.seed)
    answers = vlm.batches.gathered(
        held, lambda some: list(vlm.generate(some, max_new_tokens=settings.description_tokens).texts)
    )
    rows = [
        Row(one.image, one.text, "", "Yes" if margin > 0 else "No", VERDICT, one.system, about=one.request)  # type: ignore[arg-type]
        for one, margin in zip(prompts, teacher.tolist(), strict=True)
    ]
    rows += [
        Row(one.image, one.text, "", answer, PERCEPTION, one.system)  # type: ignore[arg-type]
        for one, answer in zip(held, answers, strict=True)
    ]
    data = from_rows(rows)
    left_out = {one.line for one in data.skipped}
    margins = [*teacher.tolist(), *[float("nan")] * len(held)]
    kept = [margin for line, margin in enumerate(margins, 1) if line not in left_out]
    dataset = data.dataset.add_column(MARGIN, kept)
    training = Settings(
        rank=settings.rank, alpha=2.0 * settings.rank, steps=settings.steps, batch_size=settings.batch_size,
        learning_rate=settings.learning_rate, seed=settings.seed,
    )  # fmt: skip
    own = f"{name}-{data_digest(dataset).partition(':')[2]}"
    done = train(
        model,
        dataset,
        training,
        folder / own,
        data=f"the model's own verdicts in words: {settings}",
        hold=settings.hold,
    )
    revision = adapter_hash(done.adapter)
    with adapted(model, done.adapter, revision):
        distilled = vlm.batches.scores(prompts)
    about = {
        "folder": own,
        "adapter": revision,
        "losses": done.losses,
        "seconds": done.seconds,
        "rows": {VERDICT: len(prompts), PERCEPTION: len(held), "left out": len(left_out)},
        "control": settings.control,
    }
    return {"teacher": teacher, "plain": plain, "distilled": distilled}, about


def held_prompts(
    prompts: "Sequence[Prompt]", descriptions: Sequence[str], questions: Sequence[str], seed: int
) -> "list[Prompt]":
    """One question about each picture, by turns, with what its ``{thing}`` and ``{request}`` stand for."""
    things = [SPOKEN_OF.sub("", phrase(one)).strip() for one in descriptions]
    named = [one for one in dict.fromkeys(things) if one] or ["a thing"]
    found = []
    for number, (prompt, own) in enumerate(zip(prompts, things, strict=True)):
        draw = random.Random(f"{seed}:{prompt.key or prompt.text}:held")
        thing = own if own and draw.random() < 0.5 else draw.choice(named)
        request = parts(prompt.text, prompt.request).request
        text = questions[number % len(questions)].replace("{thing}", thing).replace("{request}", request)
        found.append(replace(prompt, text=text, request="", key=f"{prompt.key or prompt.text}:held"))
    return found


def _described(vlm: "VLM", prompts: "list[Prompt]", settings: Any) -> list[str]:
    said = settings.words.descriptions(Steps(vlm, len(prompts)), prompts)
    return [said[row] for row in range(len(prompts))]
