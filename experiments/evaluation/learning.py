"""Training of the arms that learn, on cases that they do not answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.benchmarks.checks import content_of
from experiments.benchmarks.images import BadImage, open_pictures
from experiments.config import digest
from experiments.evaluation.case_batches import prompt_of
from experiments.evaluation.folds import SAFE
from experiments.runs.launch import Launch
from experiments.runs.store import RunStore, read_object
from experiments.types import Sample
from interp.atomic import atomic_write
from interp.errors import UserError
from mitigation.method import MethodFault, TrainableMethod

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method

FOLDER = "learned"
LEARNED_FROM = "learned.json"  # by file, a hash of model, method and the cases that it was learned from


def learned(
    arm: str, method: TrainableMethod, vlm: "VLM", samples: Sequence[Sample], out: Path, launch: Launch | None = None
) -> "Method":
    """Train ``method`` on ``samples``, or read it from ``out`` (safetensors) if an earlier launch has trained it.

    Rank 0 of ``launch`` (None: the current one) trains and writes ``out``; the others wait and read it. A killed
    training leaves no ``out``, but what it had measured of its cases. ``vlm.batches`` forms the batches.

    Raises:
        MethodFault: names the arm; it cannot be trained on these cases.
        UserError: names the arm; ``out`` cannot be written or read.
    """
    launch = launch or Launch.current()
    try:
        if launch.first and not out.exists():
            _learn(method, vlm, samples, out)
        launch.wait()
        return method.read(out)
    except UserError as error:
        kind = MethodFault if isinstance(error, MethodFault) else UserError
        raise kind(f"arm {arm}: {error}") from error


def learned_in(
    store: RunStore, arm: str, method: TrainableMethod, vlm: "VLM", samples: Sequence[Sample], fold: int | None = None
) -> "Method":
    """Train as ``learned`` in a run's directory; again if model, method or cases changed. ``fold`` is left out.

    Raises:
        UserError: see ``learned``.
    """
    name = f"{arm}{'' if fold is None else f'-without-fold-{fold}'}"
    out = store.path / FOLDER / f"{name}.safetensors"
    followed = [] if vlm.metric is None else [repr(vlm.metric)]
    cases = digest([*vlm.identity, repr(method), *followed, *([sample.id, content_of(sample)] for sample in samples)])
    before = read_object(store.path / LEARNED_FROM)
    if store.launch.first and before.get(name, cases) != cases:
        out.unlink(missing_ok=True)
    store.write_json(LEARNED_FROM, before | {name: cases})
    return learned(arm, method, vlm, samples, out, store.launch)


def examples(samples: Sequence[Sample]) -> "tuple[list[Prompt], list[bool]]":
    """Return prompts to train on and whether each is safe, without controls and images that cannot be opened."""
    prompts: list[Prompt] = []
    safe: list[bool] = []
    for sample in samples:
        if sample.subset == "control":
            continue
        try:
            image = open_pictures(sample)
        except BadImage:
            continue
        prompts.append(prompt_of(sample, image))
        safe.append(SAFE[sample.gold])
    return prompts, safe


def _learn(method: TrainableMethod, vlm: "VLM", samples: Sequence[Sample], out: Path) -> None:
    prompts, safe = examples(samples)
    if not prompts:
        raise MethodFault("no development case can be learned from; raise limit, or repair the images")
    try:
        with atomic_write(out) as draft:
            method.learn(vlm, prompts, safe, out=draft)
    except OSError as error:
        raise UserError(
            f"cannot write {out} ({error.strerror or error}); make room and run the same command again"
        ) from error
    except UserError as error:
        raise MethodFault(str(error)) from error
