"""``task=bench_eval``: a whole study's answers, compared with a plain loop that asks one case at a time.

A study asks all arms of a batch before the next batch, and reads a shared prompt once. "Arms apart" asks arm after arm
and shares nothing. Peaks of memory are next to the estimates of ``task=plan``. Imports neither torch nor transformers.
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
from experiments.runs.resumption import open_run
from experiments.studies.bench.harness import PLAIN, Bench, Job, Variants, peaks
from experiments.studies.bench.models import ORGANISM_SIZE, SIZES, model_of
from experiments.studies.bench.plan import batches_of, fit, largest_of, weight_bytes
from experiments.types import Sample
from mitigation.method import Baseline
from mitigation.prompting import ContextPrompt
from mitigation.threshold import ConstantShift
from mitigation.vcd import VCD

if TYPE_CHECKING:
    from interp.vlm import VLM

SIDE = 672  # pixels of a picture for a large model, as photographs of a benchmark have or more
STUDY, APART = "study", "arms apart"
ARMS: dict[str, Any] = {"baseline": Baseline(), "vcd": VCD(), "prompt": ContextPrompt(), "shift": ConstantShift(0.5)}
LIMITS = {"cpu": 1 / 3, "cuda": 1 / 8}  # of the loop's time, for a study
Answers = dict[tuple[str, str], str]  # by case and arm


@dataclass(frozen=True)
class EvalBench(Bench):
    """The task: ``cases`` of IconWorld under four arms, in batches by the settings of the run (``batch_tokens``, …)."""

    sizes: list[str] = field(default_factory=lambda: [ORGANISM_SIZE])
    cases: list[int] = field(default_factory=lambda: [64])
    choices: ClassVar = (ORGANISM_SIZE, *SIZES)
    numbers: ClassVar = "cases"

    def jobs(self, run: Run, device: str) -> list[Job]:
        """Return a study of each model and number of cases."""
        run = replace(run, benchmark=IconWorld(), arms=ARMS, arm="vcd", fresh=True)
        tokens = run.max_new_tokens
        return [Job(f"{size}, {n} cases", size, n, tokens, device, run) for size in self.sizes for n in self.cases]

    def variants(self, job: Job) -> Variants:
        """Return the loop, a study that shares nothing, and a study."""
        vlm, samples = questions(job.size, job.number, job.device, job.run.seed)
        alone = replace(job.run, feature_cache_mib=0, image_workers=0)
        return {
            PLAIN: partial(looped, vlm, samples, job.tokens),
            APART: partial(studied, alone, vlm, samples, [{name: arm} for name, arm in ARMS.items()]),
            STUDY: partial(studied, job.run, vlm, samples, [ARMS]),
        }

    def limit(self, job: Job, variant: str) -> float | None:
        """Return the limit of a study."""
        return LIMITS[job.device.partition(":")[0]] if variant == STUDY else None

    def measure(self, run: Run, device: str) -> dict[str, Any]:
        """Return also how many answers differ from the loop's, and the arms' peaks next to those of the plan."""
        metrics = super().measure(run, device) | {"answers": [], "memory": []}
        for job in self.jobs(run, device):
            answers = {name: work() for name, work in self.variants(job).items()}
            for name in (APART, STUDY):
                unlike = sum(answers[name][key] != text for key, text in answers[PLAIN].items())
                metrics["answers"].append({"what": job.title, "variant": name, "unlike the loop's": unlike})
            vlm, samples = questions(job.size, job.number, job.device, job.run.seed)
            batch = largest_of(batches_of(job.run, samples, vlm))
            alone = {name: partial(studied, job.run, vlm, samples, [{name: arm}]) for name, arm in ARMS.items()}
            for name, peak in peaks(alone, device).items() if self.memory else ():
                planned = (fit(ARMS[name], batch, vlm, 2**60, job.tokens)[1] - weight_bytes(vlm)) / 2**20
                metrics["memory"].append({"what": job.title, "arm": name, "measured MiB": peak, "planned MiB": planned})
        return metrics


@lru_cache(maxsize=1)
def questions(size: str, cases: int, device: str, seed: int) -> "tuple[VLM, list[Sample]]":
    """Return the model and cases of IconWorld; for a large model with large pictures."""
    samples = limited((IconWorld(size=SIDE) if size.startswith("7b") else IconWorld()).load().samples, cases)
    return model_of(size, device, seed, [sample.prompt for sample in samples]), samples


def looped(vlm: "VLM", samples: list[Sample], tokens: int) -> Answers:
    """Ask one case at a time, without a judge and without files."""
    answers = {}
    for name, method in ARMS.items():
        for sample in samples:
            prompt = prompt_of(sample, sample.image and open_image(sample.image))
            answers[sample.id, name] = method.generate(vlm, [prompt], max_new_tokens=tokens).texts[0]
    return answers


def studied(run: Run, vlm: "VLM", samples: list[Sample], turns: list[Mapping[str, Any]]) -> Answers:
    """Ask as a study does, the arms of each turn together."""
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
        for arms in turns:
            Answering(run, vlm, store, Console(quiet=True)).answer(arms, samples)
        return {(line["case"], line["arm"]): line["response"] for line in store.records()}
