"""``task=bench_eval``: a whole study's answers, compared with a plain loop that asks one case at a time.

A study asks all arms of a batch before the next batch, and reads a shared prompt once. An arm alone shares nothing.
Peaks of memory are next to the estimates of ``task=plan``. Imports neither torch nor transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.images import open_image
from experiments.config import Run
from experiments.evaluation.answer import Answering
from experiments.evaluation.case_batches import prompt_of
from experiments.evaluation.cases import limited
from experiments.runs.store import open_run
from experiments.studies.bench.harness import PLAIN, Bench, Job, Row, Variants
from experiments.studies.bench.models import ORGANISM_SIZE, model_of
from experiments.studies.bench.plan import batches_of, fit, largest_of, weight_bytes
from experiments.types import Sample
from mitigation.method import Baseline
from mitigation.prompting import ContextPrompt
from mitigation.threshold import ConstantShift
from mitigation.vcd import VCD

if TYPE_CHECKING:
    from interp.vlm import VLM

SIDE = 672  # pixels of a picture for a large model, as photographs of a benchmark have or more
STUDY = "study"
ARMS: dict[str, Any] = {"baseline": Baseline(), "vcd": VCD(), "prompt": ContextPrompt(), "shift": ConstantShift(0.5)}
LIMITS = {"cpu": {STUDY: 1 / 3}, "cuda": {STUDY: 1 / 8}}  # of the loop's time


@dataclass(frozen=True)
class EvalBench(Bench):
    """The task: ``cases`` of IconWorld under four arms, in batches by the settings of the run (``batch_tokens``, …)."""

    sizes: list[str] = field(default_factory=lambda: [ORGANISM_SIZE])
    cases: list[int] = field(default_factory=lambda: [64])
    numbers: ClassVar = "cases"

    def jobs(self, run: Run, device: str) -> list[Job]:
        """Return a study of each model and number of cases."""
        run = replace(run, benchmark=IconWorld(), arms=ARMS, arm="vcd", fresh=True)
        return [
            Job(f"{size}, {count} cases", partial(variants, run, size, count, device), LIMITS[device.partition(":")[0]])
            for size in self.sizes
            for count in self.cases
        ]

    def measure(self, run: Run, device: str) -> dict[str, Any]:
        """Return also the peaks that ``task=plan`` estimates."""
        planned: list[Row] = []
        metrics = super().measure(run, device)
        for job in self.jobs(run, device):
            study, vlm, samples, arms = job.make()[STUDY].args
            batch = largest_of(batches_of(study, samples, vlm))
            for name, method in arms.items():
                peak = fit(method, batch, vlm, 2**60, run.max_new_tokens)[1] - weight_bytes(vlm)
                planned.append({"what": job.title, "variant": f"{name} alone", "planned MiB": peak / 2**20})
        return metrics | {"planned": planned}


def variants(run: Run, size: str, cases: int, device: str) -> Variants:
    """Return the loop, a study of all arms, and a study of each arm that shares nothing."""
    vlm, samples = questions(size, cases, device, run.seed)
    alone = replace(run, feature_cache_mib=0, image_workers=0)
    work: Variants = {PLAIN: partial(looped, run, vlm, samples, ARMS), STUDY: partial(studied, run, vlm, samples, ARMS)}
    return work | {f"{name} alone": partial(studied, alone, vlm, samples, {name: arm}) for name, arm in ARMS.items()}


@lru_cache(maxsize=1)
def questions(size: str, cases: int, device: str, seed: int) -> "tuple[VLM, list[Sample]]":
    """Return the model and cases of IconWorld; for a large model with large pictures."""
    samples = limited((IconWorld(size=SIDE) if size.startswith("7b") else IconWorld()).load().samples, cases)
    return model_of(size, device, seed, [sample.prompt for sample in samples]), samples


def looped(run: Run, vlm: "VLM", samples: list[Sample], arms: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Ask one case at a time, without a judge and without files."""
    answers = {}
    for name, method in arms.items():
        for sample in samples:
            prompt = prompt_of(sample, None if sample.image is None else open_image(sample.image))
            answers[sample.id, name] = method.generate(vlm, [prompt], max_new_tokens=run.max_new_tokens).texts[0]
    return answers


def studied(run: Run, vlm: "VLM", samples: list[Sample], arms: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Ask as a study does."""
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
        Answering(run, vlm, store, Console(quiet=True)).answer(arms, samples)
        return {(line["case"], line["arm"]): line["response"] for line in store.records()}
