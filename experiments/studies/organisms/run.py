"""``task=train_organism``, ``task=train_smol_organism``: trains an organism, measures it, writes it with its card.

The card says how it was made (``cards/<organism>.md.j2``), what was measured, and its limits.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from rich.console import Console

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.iconworld.cases import Split
from experiments.benchmarks.iconworld.perception import KINDS
from experiments.config import Run
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.judging import judge_batch
from experiments.evaluation.perception import perception_accuracy
from experiments.judges.yes_no import YesNo
from experiments.metrics.yes_no import results
from experiments.report.arm_tables import arms_table
from experiments.report.table import Table, markdown
from experiments.runs.resumption import open_run, write_json
from experiments.studies.organisms.alignment import CATEGORY_OF, FRAMES
from experiments.studies.organisms.architecture import build_llava, build_smol
from experiments.studies.organisms.held_out import HELD_OUT_CONCEPTS, HELD_OUT_TEMPLATES
from experiments.studies.organisms.recipe import Recipe
from experiments.studies.organisms.stages import COMPUTES_IN, train
from experiments.studies.organisms.trainer import Trainer, bars, reproducible
from experiments.types import Sample
from interp.checkpoints.cache import fetched_base
from interp.errors import UserError
from interp.loading import load
from interp.vlm import VLM, Prompt
from mitigation.method import Baseline, Method
from mitigation.prompting import ContextPrompt, SafetyPrompt
from mitigation.verbalise import Verbalise

SPLITS: tuple[Split, ...] = ("development", "test", "new_sentences")
ARMS: dict[str, dict[str, Method]] = {
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
YES_NO_KINDS = ("presence", "sign")  # kinds whose chance level is one half


def run(run: Run, *, recipe: Recipe, to: str | None) -> None:
    """Trains, evaluates on development, test and new sentences, and writes checkpoint, card and ``metrics.json``.

    A second launch goes on with the stage that was cut off. The checkpoint goes to ``to``, or to ``checkpoint/`` in the
    run's directory.

    Raises:
        UserError: the second organism's language model has not been fetched, or ``to`` is not empty.
    """
    if to is not None and Path(to).exists() and any(Path(to).iterdir()):
        raise UserError(f"task.to={to}: is not empty; name a new folder, so that no checkpoint is overwritten")
    base = fetched_base("training starts from it") if recipe.organism == "smol" else None
    console = Console()
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
        folder = Path(to) if to is not None else store.path / "checkpoint"
        kept = store.path / "training"
        kept.mkdir(exist_ok=True)
        started = time.monotonic()
        with reproducible(recipe.seed, recipe.threads), bars(console) as report:
            pieces = build_llava() if base is None else build_smol(base, rank=recipe.rank)
            train(Trainer(recipe, pieces, report, kept))
            pieces.save(folder)
        minutes = (time.monotonic() - started) / 60
        vlm = load(str(folder), device="cpu", dtype=None if base is None else COMPUTES_IN)
        measured: dict[str, Any] = {split: evaluate(vlm, split, recipe.organism, seed=run.seed) for split in SPLITS}
        write_json(store.path / "metrics.json", measured)
        (folder / "README.md").write_text(model_card(recipe, measured, minutes), encoding="utf-8")
        if to is None:
            shutil.copy(folder / "README.md", store.path / "README.md")
        for split, result in measured.items():
            shown = {name: round(arm["auroc"], 3) for name, arm in result["arms"].items()}
            console.print(f"{split}: AUROC {json.dumps(shown)}", highlight=False)
        console.print(f"trained in {minutes:.1f} minutes: {folder}", highlight=False, soft_wrap=True)


def evaluate(
    vlm: VLM, split: Split, organism: str, *, seed: int = 0, draws: int = 2000, per_kind: int = 300
) -> dict[str, Any]:
    """Metrics of one split, and ``per_kind`` questions of each kind about pictures; of the second organism also
    answers in free text."""
    samples, worded = IconWorld(split=split).load().samples, organism == "smol"
    rows = [record for arm, method in ARMS[organism].items() for record in verdicts(vlm, samples, arm, method)]
    metrics = results.evaluate(pd.DataFrame(rows), seed=seed, draws=draws, study="baseline" if worded else "prompt")
    return {
        "split": split,
        "perception": perception_accuracy(vlm, split, per_kind=per_kind, kinds=ASKED[organism]),
        "answers": answers(vlm, samples) if worded else [],
        **metrics,
    }


def verdicts(vlm: VLM, samples: Sequence[Sample], arm: str, method: Method) -> list[dict[str, Any]]:
    """Records of one arm on IconWorld cases, as a study writes them."""
    case_of = {sample.id: sample for sample in samples}

    def ask(some: list[Prompt]) -> list[dict[str, Any]]:
        generation = method.generate(vlm, some, max_new_tokens=8)
        return list(judge_batch([case_of[prompt.key] for prompt in some], arm, "organism", generation, YesNo()))

    return vlm.batches.gathered(prompts_of(samples), ask)


def answers(vlm: VLM, samples: Sequence[Sample]) -> list[dict[str, str]]:
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


def model_card(recipe: Recipe, measured: Mapping[str, Any], minutes: float) -> str:
    """The card. ``measured`` maps split to ``evaluate``'s result; ``minutes`` is the training time."""
    text = (files("experiments.studies.organisms") / "cards" / f"{recipe.organism}.md.j2").read_text(encoding="utf-8")
    template = Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(text)  # Markdown
    return template.render(
        recipe=recipe,
        percent=lambda share: f"{100 * share:.0f}%",
        leanings=", ".join(f"{name} {100 * share:.0f}%" for name, share in recipe.leanings.items()),
        frames=len(FRAMES),
        texts=sum(len(frame.texts) for frame in FRAMES),
        nouns=len(CATEGORY_OF),
        templates=", ".join(sorted(HELD_OUT_TEMPLATES)),
        concepts=", ".join(sorted(HELD_OUT_CONCEPTS)),
        splits={split: _split(result) for split, result in measured.items()},
        answers=markdown(Table.of("", measured["test"]["answers"])) if measured["test"]["answers"] else "",
        minutes=minutes,
        dtype=COMPUTES_IN,
    )


def _split(result: Mapping[str, Any]) -> str:
    """How many cases there are, the table of a report, and how many questions about pictures are answered right."""
    counts = result["arms"]["baseline"]["n_by_subset"]
    cases = ", ".join(f"{subset.replace('_', '-')} {n}" for subset, (n, _) in counts.items())
    return "\n\n".join([f"({cases})", markdown(arms_table(result)), _perception(result["perception"])])


def _perception(found: Mapping[str, Any]) -> str:
    accuracies = ", ".join(f"{kind} {100 * one['accuracy']:.1f}%" for kind, one in found.items())
    weak = [kind for kind in found if kind in YES_NO_KINDS and found[kind]["accuracy"] < 0.6]
    note = f" At chance: {', '.join(weak)}; naming what is there was learned, checking a name against it was not."
    n = next(iter(found.values()))["n"]
    return f"Questions about pictures, right word for word ({n} of each kind): {accuracies}.{note if weak else ''}"
