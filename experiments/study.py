"""The study: the same cases under every arm, recorded as they are answered, then scored and compared.

Fixed batches in the benchmark's order make a continued run equal an undisturbed one: a batch not wholly recorded is
answered again as a whole, and only what is missing of it is appended.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments import calibration, metrics, records
from experiments.benchmarks.images import BadImage, open_image
from experiments.benchmarks.sample import Loaded, Sample
from experiments.environment import describe
from experiments.outcomes import Status
from experiments.report.build import build, thumbnail_name
from experiments.report.terminal import results
from experiments.schema import Run, digest
from experiments.store import Key, RunStore, open_run
from interp.errors import UserError
from mitigation.shift import CalibratedShift

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method

Item = TypeVar("Item")
PREDICTIONS = "predictions.jsonl"
DEVELOPMENT = "development.jsonl"
THUMBNAIL = 160  # pixels, the longer side


def run(run: Run) -> None:
    """Evaluates all arms, writes the record, the metrics and the report, and prints the summary."""
    console = Console()
    complete = load_cases(run, console)
    loaded = complete._replace(samples=limited(complete.samples, run.limit))
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
        console.print(_plan(run, loaded, store), highlight=False, soft_wrap=True, markup=False)
        from interp.vlm import load  # torch and transformers: only when everything else is in order

        vlm = load(run.model)
        environment = describe(run, vlm, loaded)
        store.write_json("environment.json", environment)
        study = Study(run, vlm, store, loaded, console, _shortfall(complete))
        study.answer_all()
        looked = study.look() if run.attention else []
        study.conclude(environment)
        for sentence in looked:
            console.print(sentence, highlight=False, markup=False)


def limited(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """The first ``limit`` cases with the subsets taken by turns, over-safety first, in the benchmark's own order."""
    if limit is None or limit >= len(samples):
        return list(samples)
    order = ("over_safety", "typical", "attack", "control")
    queues = [[sample for sample in samples if sample.subset == subset] for subset in order]
    turns = [queue[index] for index in range(max(map(len, queues))) for queue in queues if index < len(queue)]
    chosen = {sample.id for sample in turns[:limit]}
    return [sample for sample in samples if sample.id in chosen]


def load_cases(run: Run, console: Console) -> Loaded:
    """The benchmark's cases; says what cannot run here. UserError where none can."""
    loaded = run.benchmark.load()
    if not loaded.samples:
        raise UserError(f"benchmark {run.benchmark.name} has no case that can run here; look at benchmark.root")
    if loaded.missing:
        console.print(f"[yellow]{_shortfall(loaded)} Their ids are in environment.json.[/yellow]", highlight=False)
    return loaded


@dataclass
class Study:
    """One run at work: model, store and cases."""

    run: Run
    vlm: "VLM"
    store: RunStore
    loaded: Loaded
    console: Console
    shortfall: str = ""

    def answer_all(self) -> None:
        """Every arm on every case, skipping what is recorded; the baseline first, since shifts are fitted on it."""
        for arm, method in self.run.arms.items():
            if isinstance(method, CalibratedShift):
                for fold, shift in self._fitted_shifts(method).items():
                    members = [s for s in self.loaded.samples if fold in (None, calibration.fold_of(s.cluster))]
                    self._answer(
                        arm, shift, members, self.loaded.manifest, label=f"{arm}{'' if fold is None else f' {fold}'}"
                    )
            else:
                self._answer(arm, method, self.loaded.samples, self.loaded.manifest)

    def _fitted_shifts(self, method: CalibratedShift) -> "Mapping[int | None, Method]":
        """One shift from the development split, or one a fold where the benchmark has none."""
        development = self.run.benchmark.development()
        if development is None:
            baseline = [r for r in self.store.records(PREDICTIONS) if r["arm"] == "baseline"]
            return calibration.cross_fitted(method, baseline)
        samples = limited(development.samples, self.run.limit)
        self._answer(
            "baseline",
            self.run.arms["baseline"],
            samples,
            development.manifest,
            file=DEVELOPMENT,
            label="development split",
        )
        return {None: calibration.fitted(method, self.store.records(DEVELOPMENT))}

    def _answer(
        self,
        arm: str,
        method: "Method",
        samples: Sequence[Sample],
        manifest: str,
        *,
        file: str = PREDICTIONS,
        label: str | None = None,
    ) -> None:
        settings = self._settings(method, manifest)
        done = {records.key(record) for record in self.store.records(file)}
        with _progress(self.console) as progress:
            bar = progress.add_task(label or arm, total=len(samples))
            for batch in batches(samples, self.run.batch_size):
                missing = {sample.id for sample in batch if (sample.id, arm, settings) not in done}
                if missing:
                    answered = self._answer_batch(arm, method, settings, batch)
                    self.store.append([record for record in answered if record["case"] in missing], file)
                progress.advance(bar, len(batch))

    def _settings(self, method: "Method", manifest: str) -> str:
        """The hash of all that can change an answer, beside the case itself."""
        model = (self.vlm.name, self.vlm.revision, str(self.vlm.dtype), self.run.model.chat_template)
        return digest([model, repr(method), self.run.max_new_tokens, manifest])

    def _answer_batch(
        self, arm: str, method: "Method", settings: str, batch: Sequence[Sample]
    ) -> Iterator[dict[str, Any]]:
        prompts: list[Prompt] = []
        shown: list[Sample] = []
        for sample in batch:
            try:
                prompts.append(_prompt(sample))
                shown.append(sample)
            except BadImage as error:
                yield records.failed(sample, arm, settings, Status.BAD_IMAGE, str(error))
        if not prompts:
            return
        generation = method.generate(self.vlm, prompts, max_new_tokens=self.run.max_new_tokens)
        for index, sample in enumerate(shown):
            yield records.answered(
                sample,
                arm,
                settings,
                response=generation.texts[index],
                margin=float(generation.margins[index]),
                finished=generation.finished[index],
            )

    def look(self) -> list[str]:
        """Writes where the attention of the baseline's failures went; returns what was found, in sentences."""
        from experiments.attention.analysis import analyse_failures

        try:
            with self.console.status("attention of failures and matched successes"):
                result = analyse_failures(
                    self.vlm,
                    self.loaded.samples,
                    self._current_records(),
                    self.store.path,
                    seed=self.run.seed,
                    draws=self.run.draws,
                    batch_size=self.run.batch_size,
                    max_new_tokens=self.run.max_new_tokens,
                    captum=self.run.attribution == "captum",
                )
        except UserError as error:  # the study is worth keeping also where its attention cannot be looked at
            return [f"attention was not analysed: {error}"]
        return list(result["sentences"])

    def conclude(self, environment: Mapping[str, Any]) -> None:
        """Metrics, thumbnails of the cases whose verdict changed, report, table and sentences."""
        current = self._current_records()
        frame = pd.DataFrame(current)
        result = metrics.evaluate(
            frame,
            seed=self.run.seed,
            draws=self.run.draws,
            study=self.run.arm,
            unsafe_margin=self.run.unsafe_margin,
            where=f"{self.vlm.name} on {self.run.benchmark.name}",
            caveat=" ".join(filter(None, (_caveat(self.run), self.shortfall))),
        )
        self.store.write_json("metrics.json", result)
        self._write_thumbnails(frame)
        self.store.write_json("environment.json", {**environment, "finished": records.now()})
        page = build(self.store.path)
        self.store.finish()
        self.console.print(results(result))
        self.console.print(f"report: {page}", highlight=False, soft_wrap=True)

    def _current_records(self) -> list[dict[str, Any]]:
        """The records of this run's arms and cases; a later record of a case and arm replaces an earlier one."""
        cases = {sample.id for sample in self.loaded.samples}
        latest: dict[Key, dict[str, Any]] = {}
        for record in self.store.records(PREDICTIONS):
            if record["arm"] in self.run.arms and record["case"] in cases:
                latest[record["case"], record["arm"], ""] = record
        return list(latest.values())

    def _write_thumbnails(self, frame: pd.DataFrame) -> None:
        verdicts = frame.groupby("case")["verdict"].nunique()
        changed = set(verdicts[verdicts > 1].index)
        folder = self.store.path / "thumbnails"
        folder.mkdir(exist_ok=True)
        for sample in self.loaded.samples:
            if sample.id in changed and sample.image is not None:
                image = open_image(sample.image)
                image.thumbnail((THUMBNAIL, THUMBNAIL))
                image.save(folder / thumbnail_name(sample.id), quality=90)


def _prompt(sample: Sample) -> "Prompt":
    from interp.vlm import Prompt

    return Prompt(sample.prompt, None if sample.image is None else open_image(sample.image), key=sample.id)


def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Runs of ``size`` items in order; the last may be shorter."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _plan(run: Run, loaded: Loaded, store: RunStore) -> str:
    """What is about to happen, before the weights load: where, on what, and every arm's settings."""
    lines = [
        f"{'continuing' if store.resumed else 'run'} {store.path}",
        f"{run.model.name} on {len(loaded.samples)} cases of {run.benchmark.name}",
        *(f"  {arm}: {method}" for arm, method in run.arms.items()),
    ]
    return "\n".join([*lines, run.note] if run.note else lines)


def _shortfall(loaded: Loaded) -> str:
    """How many of a benchmark's cases cannot run here, and why, in a sentence; "" where all can."""
    if not loaded.missing:
        return ""
    reasons = Counter(reason.partition(":")[0] for reason in loaded.missing.values())
    listed = ", ".join(f"{count:,} × {reason}" for reason, count in reasons.most_common())
    total = len(loaded.samples) + len(loaded.missing)
    return f"{len(loaded.samples):,} of the benchmark's {total:,} cases can run here ({listed})."


def _caveat(run: Run) -> str:
    """What a reader must know before the numbers: the organism understands IconWorld alone."""
    if run.model.path.startswith("organism:") and run.benchmark.name != "iconworld":
        return (
            "The model is the bundled organism, which knows IconWorld's words and pictures alone: on "
            f"{run.benchmark.name} its answers mean nothing, and this run shows only that every step works."
        )
    return ""
