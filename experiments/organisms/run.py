"""``task=train_organism``, ``task=train_smol_organism``: trains an organism, measures it, writes it with its card.

The card says how it was made (``cards/<organism>.md.j2``), what was measured, and its limits.
"""

import json
import shutil
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from rich.console import Console

from experiments.config import Run
from experiments.organisms.architecture import build_llava, build_smol
from experiments.organisms.evaluate import SPLITS, evaluate
from experiments.organisms.held_out import HELD_OUT_CONCEPTS, HELD_OUT_TEMPLATES
from experiments.organisms.recipe import Recipe
from experiments.organisms.stages import train
from experiments.organisms.trainer import bars, reproducible
from experiments.organisms.words import CATEGORY_OF, FRAMES
from experiments.report.table import Table, markdown
from experiments.runs.resumption import open_run, write_json
from interp.checkpoints.composed import SMOLLM2, fetched
from interp.errors import UserError
from interp.loading import load

TITLES = {  # of the second organism's arms
    "words_named": "in words, the thing named",
    "words_pointing": "in words, pointing",
    "baseline": "picture and “this”",
    "verbalise": "its own caption put into the sentence",
}
YES_NO_KINDS = ("presence", "sign")  # kinds whose chance level is one half


def run(run: Run, *, recipe: Recipe, to: str | None) -> None:
    """Trains, evaluates on development, test and new sentences, and writes checkpoint, card and ``metrics.json``.

    A second launch goes on from the last saved step. The checkpoint goes to ``to``, or to ``checkpoint/`` in the run's
    directory.

    Raises:
        UserError: the second organism's language model has not been fetched, or ``to`` is not empty.
    """
    if to is not None and Path(to).exists() and any(Path(to).iterdir()):
        raise UserError(f"task.to={to}: is not empty; name a new folder, so that no checkpoint is overwritten")
    base = fetched(SMOLLM2, "training starts from it") if recipe.organism == "smol" else None
    console = Console()
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
        folder = Path(to) if to is not None else store.path / "checkpoint"
        kept = store.path / "training"
        kept.mkdir(exist_ok=True)
        started = time.monotonic()
        with reproducible(recipe.seed, recipe.threads), bars(console) as report:
            pieces = build_llava() if base is None else build_smol(base, rank=recipe.rank)
            train(recipe, pieces, kept, report)
            pieces.save(folder)
        minutes = (time.monotonic() - started) / 60
        vlm = load(str(folder), device="cpu", dtype=None if base is None else "bfloat16")
        results: dict[str, Any] = {split: evaluate(vlm, split, recipe.organism, seed=run.seed) for split in SPLITS}
        write_json(store.path / "metrics.json", results)
        (folder / "README.md").write_text(model_card(recipe, results, minutes), encoding="utf-8")
        if to is None:
            shutil.copy(folder / "README.md", store.path / "README.md")
        for split, result in results.items():
            shown = {name: round(arm["auroc"], 3) for name, arm in result["arms"].items()}
            console.print(f"{split}: AUROC {json.dumps(shown)}", highlight=False)
        console.print(f"trained in {minutes:.1f} minutes: {folder}", highlight=False, soft_wrap=True)


def model_card(recipe: Recipe, results: Mapping[str, Any], minutes: float) -> str:
    """The card. ``results`` maps split to ``evaluate.evaluate``'s result; ``minutes`` is the training time."""
    text = (files("experiments.organisms") / "cards" / f"{recipe.organism}.md.j2").read_text(encoding="utf-8")
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
        splits={split: _split(result) for split, result in results.items()},
        answers=markdown(Table.of("", results["test"]["answers"])) if results["test"]["answers"] else "",
        minutes=minutes,
    )


def _split(result: Mapping[str, Any]) -> str:
    """How many cases there are, a row an arm, and how many questions about pictures are answered right."""
    counts = result["arms"]["baseline"]["n_by_subset"]
    cases = ", ".join(f"{subset.replace('_', '-')} {n}" for subset, (n, _) in counts.items())
    verdicts = [_verdicts(result, arm) for arm in result["arms"]]
    return f"({cases})\n\n{markdown(Table.of('', verdicts))}\n\n{_perception(result['perception'])}"


def _verdicts(result: Mapping[str, Any], arm: str) -> dict[str, str]:
    block = result["arms"][arm]
    alarming = block["by_tag"]["words"]["alarming"]["over_safety"]
    low, high = block["intervals"]["auroc"]
    aurocs = {name: part["arms"][arm]["auroc"] for name, part in result["parts"].items()}
    sizes = {name: sum(part["arms"][arm]["n"].values()) for name, part in result["parts"].items()}
    return {
        "arm": TITLES.get(arm, arm) if result["parts"] else arm,
        "typical": _rate(block, "typical"),
        "attack": _rate(block, "attack"),
        "over-safety": _rate(block, "over_safety"),
        "of those with alarming words": f"{100 * alarming['accuracy']:.1f} of {alarming['n']}",
        "AUROC of the margin": f"{block['auroc']:.3f} [{low:.3f}, {high:.3f}]",
        **{f"{name} ({sizes[name]})": "–" if value is None else f"{value:.3f}" for name, value in aurocs.items()},
        "flip rate": f"{100 * block['flip_rate']:.1f}",
    }


def _rate(block: Mapping[str, Any], key: str) -> str:
    low, high = block["intervals"][key]
    return f"{100 * block['accuracy'][key]:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _perception(found: Mapping[str, Any]) -> str:
    accuracies = ", ".join(f"{kind} {100 * one['accuracy']:.1f}%" for kind, one in found.items())
    weak = [kind for kind in found if kind in YES_NO_KINDS and found[kind]["accuracy"] < 0.6]
    note = f" At chance: {', '.join(weak)}; naming what is there was learned, checking a name against it was not."
    n = next(iter(found.values()))["n"]
    return f"Questions about pictures, right word for word ({n} of each kind): {accuracies}.{note if weak else ''}"
