"""``task=bench_eval``: cases a second of a study's answering, beside a loop that asks one case at a time.

The cases are IconWorld's, with files to decode and sentences of many lengths where the model is large. Imports neither
torch nor transformers.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console

from experiments.bench.harness import MEBIBYTE, Turns, check_budget, check_size, load_average, machine, timed
from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.scene import Scene
from experiments.config import Run
from experiments.evaluation.study import limited
from experiments.report.table import Table, terminal
from experiments.runs.directory import RunStore, open_run
from experiments.types import Kind, Loaded, Sample
from mitigation.method import Baseline
from mitigation.prompting import ContextPrompt
from mitigation.threshold import ConstantShift
from mitigation.vcd import VCD

if TYPE_CHECKING:
    from interp.vlm import VLM


SIDE = 672  # pixels of a file, as photographs of a benchmark have or more
FILLER = 60  # words at most in front of a sentence


@dataclass(frozen=True)
class EvalCases:
    """A benchmark of ``count`` cases of IconWorld; with ``folder``, as JPEG files in it and with words in front."""

    count: int
    folder: str | None = None
    name: str = "bench_eval"
    kind: ClassVar[Kind] = "yes_no"

    def load(self) -> Loaded:
        """The cases; files are drawn where they are not there yet."""
        loaded = IconWorld().load()
        samples = limited(loaded.samples, self.count)
        if self.folder is not None:
            samples = [_as_file(sample, Path(self.folder), number) for number, sample in enumerate(samples)]
        return loaded._replace(samples=samples)

    def development(self) -> None:
        """There is no development split."""
        return None


def _as_file(sample: Sample, folder: Path, number: int) -> Sample:
    assert isinstance(sample.image, Scene)
    path = folder / f"{number}.jpg"
    if not path.exists():
        replace(sample.image, size=SIDE).render().save(path)
    rng = random.Random(sample.id)
    words = " ".join(rng.choices(sample.prompt.split(), k=rng.randint(0, FILLER)))
    return replace(sample, image=path, prompt=f"{words} {sample.prompt}".strip())


SIZES = {"tiny": "cpu", "7b": "cuda", "7b_qwen": "cuda", "small_qwen": "cpu"}  # size → the device that its bound is for
LEAST = {"cpu": 3.0, "cuda": 8.0}  # required speed-up over the loop
ARMS: dict[str, Any] = {"baseline": Baseline(), "vcd": VCD(), "prompt": ContextPrompt(), "shift": ConstantShift(0.5)}
LOOP, STUDY = "one by one", "study"
VARIANTS: dict[str, dict[str, Any]] = {
    "batches": {"feature_cache_mib": 0, "image_workers": 0},
    "+ features": {"image_workers": 0},
    STUDY: {},
    "score": {"protocol": "score"},
}


@dataclass(frozen=True)
class EvalBench:
    """The task: ``cases`` under four arms (baseline, VCD, a prompt, a shift), in turns by every variant.

    Each is measured once, then again up to ``repeats`` times as far as that ends within ``seconds``. What is said on
    the command line (``batch_size``, ``batch_tokens``, ``image_workers``, ``max_new_tokens``) holds for the study's
    answering. On a GPU the study's peak of memory is recorded.

    Raises:
        UserError: an unknown size or device, numbers below 1, or a 7b size without a GPU.
    """

    size: str = "tiny"
    cases: int = 64
    repeats: int = 5
    seconds: float = 120.0
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        check_size(self.size, SIZES, self.device, cases=self.cases)
        check_budget(self.repeats, self.seconds, self.device)

    def __call__(self, run: Run) -> None:
        """Measures, asks the full study once, writes ``metrics.json`` into a new run directory, prints the table."""
        from interp.checkpoints.load import resolve_device

        console, device = Console(), str(resolve_device(self.device))
        with (
            open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store,
            TemporaryDirectory() as folder,
        ):
            benchmark: Any = EvalCases(self.cases, None if self.size == "tiny" else folder)
            loaded = benchmark.load()
            given = replace(run, benchmark=benchmark, arms=ARMS, arm="vcd", fresh=True, output_root=str(store.path))
            console.print(f"run {store.path}\nanswering {self.cases} cases under {len(ARMS)} arms on {device}")
            from experiments.bench.models import model_of

            texts = [sample.prompt for sample in loaded.samples]
            bench = AnswerTimes(given, model_of(self.size, texts, device=device, seed=self.seed), loaded, Path(folder))
            busy = load_average()
            with console.status("measuring"):
                bench.measure(self.repeats, self.seconds)
            result = self._metrics(bench, device, busy)
            store.write_json("metrics.json", result)
            console.print(terminal(table(result["rows"])))
            console.print(*sentences(result), sep="\n", highlight=False)
            console.print(f"report of a whole study: {bench.study()}", highlight=False, soft_wrap=True)

    def _metrics(self, bench: "AnswerTimes", device: str, busy: float) -> dict[str, Any]:
        rows = bench.rows()
        return {
            "benchmark": "eval",
            "size": self.size,
            "weights": "the organism" if self.size == "tiny" else f"random, seed {self.seed}",
            "cases": self.cases,
            "arms": {arm: repr(method) for arm, method in ARMS.items()},
            "environment": machine(device, busy) | {"dtype": str(bench.vlm.dtype).removeprefix("torch.")},
            "rows": rows,
            "seconds": bench.turns.rounds,
            "peak_mib": bench.peak,
            "answers_unlike_the_loop": bench.answers_unlike_loop(),
            "bound": {"times": rows[STUDY]["times"], "least": LEAST["cpu" if device == "cpu" else "cuda"]},
        }


@dataclass
class AnswerTimes:
    """One model, its cases, and the variants of asking them."""

    run: Run
    vlm: "VLM"
    loaded: Loaded
    folder: Path
    peak: float | None = None  # MiB on a GPU, weights and all
    answers: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        from experiments.bench.harness import meter_for

        wait = meter_for(self.vlm.device).synchronise
        asked: dict[str, Callable[[], object]] = {LOOP: self.loop}
        asked |= {name: self._asking(name, changes) for name, changes in VARIANTS.items()}
        self.turns = Turns({name: timed(work, synchronise=wait) for name, work in asked.items()})

    def measure(self, repeats: int, seconds: float) -> None:
        """A round of all variants, and more as time allows, after one untimed forward to warm up."""
        began = time.monotonic()
        self._one(Baseline(), 0)
        while not self.turns.rounds or (
            len(self.turns.rounds) < repeats and time.monotonic() - began + self.turns.cost() <= seconds
        ):
            self.turns.run()

    def loop(self) -> None:
        """The naive loop: open, ask, keep the text. No judge, no disk."""
        self.answers[LOOP] = {
            (sample.id, arm): self._one(method, number)
            for arm, method in ARMS.items()
            for number, sample in enumerate(self.loaded.samples)
        }

    def _one(self, method: Any, number: int) -> str:
        from experiments.benchmarks.images import open_image
        from interp.vlm import Prompt

        sample = self.loaded.samples[number]
        assert sample.image is not None
        prompt = Prompt(sample.prompt, open_image(sample.image), key=sample.id)
        return method.generate(self.vlm, [prompt], max_new_tokens=self.run.max_new_tokens).texts[0]

    def _asking(self, name: str, changes: Mapping[str, Any]) -> Callable[[], object]:
        run = replace(self.run, output_root=str(self.folder), **changes)

        def asking() -> None:
            import torch

            from experiments.evaluation.answer import Answering

            cuda = self.vlm.device.type == "cuda"
            if cuda:
                torch.cuda.reset_peak_memory_stats(self.vlm.device)
            with _store(run) as store:
                answering = Answering(run, self.vlm, store, Console(quiet=True))
                for arm, method in ARMS.items():
                    answering.answer(arm, method, self.loaded.samples, self.loaded.manifest)
                self.answers[name] = {(line["case"], line["arm"]): line["response"] for line in store.records()}
            if cuda and name == STUDY:
                self.peak = torch.cuda.max_memory_allocated(self.vlm.device) / MEBIBYTE

        return asking

    def rows(self) -> dict[str, dict[str, float]]:
        """By variant: cases a second (a case under an arm is one), and how many times the loop's they are."""
        asked = len(self.loaded.samples) * len(ARMS)
        return {
            name: {"cases_per_second": asked / self.turns.median(name), "times": self.turns.ratio(LOOP, name)}
            for name in self.turns.variants
        }

    def answers_unlike_loop(self) -> int:
        """Answers of the study that differ from the loop's; in bfloat16 a batch rounds otherwise than a row."""
        return sum(text != self.answers[LOOP][key] for key, text in self.answers[STUDY].items())

    def study(self) -> Path:
        """Runs the whole study once, and returns the path of its report."""
        from experiments.evaluation.study import opened

        run = replace(self.run, name=STUDY, draws=min(self.run.draws, 1000), fresh=True)
        with opened(run, cases=self.loaded, vlm=self.vlm, console=Console(quiet=True)) as study:
            study.answer_all()
            study.conclude()
            return study.store.path / "report.html"


def _store(run: Run) -> RunStore:
    return open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True)


def table(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """A row per variant."""
    records = [
        {"asked": name, "cases/s": f"{row['cases_per_second']:.3g}", "times the loop": f"{row['times']:.2f}"}
        for name, row in rows.items()
    ]
    return Table.of("A study's answering", records)


def sentences(result: Mapping[str, Any]) -> list[str]:
    """Whether the bound is met, how many answers differ from the loop's, and the peak of memory."""
    times, least = result["bound"]["times"], result["bound"]["least"]
    kept = "kept" if times >= least else "missed"
    said = [f"{result['size']}: {times:.2f} times the loop, at least {least:.0f} wanted: {kept}"]
    said.append(f"{result['answers_unlike_the_loop']} of {result['cases'] * len(ARMS)} answers unlike the loop's")
    if result["peak_mib"] is not None:
        said.append(f"peak memory of the study: {result['peak_mib']:,.0f} MiB")
    return said
