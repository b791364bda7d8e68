"""Cases in, records out: a method is asked in fixed batches, and a judge reads what it says.

Fixed batches in the benchmark's order make a continued run equal an undisturbed one: a batch not wholly recorded is
answered again as a whole, and only what is missing of it is appended. Knows nothing of statistics or reports.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments import records
from experiments.benchmarks.images import BadImage, open_image
from experiments.benchmarks.sample import Sample
from experiments.external import Responses
from experiments.judges.judge import Item, Judge, Judgement
from experiments.outcomes import Status, Verdict
from experiments.schema import Run, digest
from experiments.store import PREDICTIONS, RunStore
from interp.model_config import ModelConfig

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt
    from mitigation.method import Method

Thing = TypeVar("Thing")
SKIPS = "skips.jsonl"


@dataclass
class Answering:
    """One model (None where every arm brings its own responses) and one judge at work on one run's store."""

    run: Run
    vlm: "VLM | None"
    store: RunStore
    console: Console

    def answer(
        self,
        arm: str,
        method: "Method | Responses",
        samples: Sequence[Sample],
        manifest: str,
        *,
        file: str = PREDICTIONS,
        label: str | None = None,
    ) -> None:
        """Records ``method`` on ``samples``; what is recorded already, but for failed transports, is passed over."""
        settings = self.settings(method, manifest)
        done = {records.key(r) for r in self.store.records(file) if r["status"] != Status.TRANSPORT_FAILED}
        everything = list(batches(samples, self.run.batch_size))
        pending = [batch for batch in everything if any((sample.id, arm, settings) not in done for sample in batch)]
        launch = self.store.launch
        with _progress(self.console) as progress:
            waiting = sum(map(len, pending))
            bar = progress.add_task(label or arm, total=len(samples), completed=len(samples) - waiting)
            for turn, batch in enumerate(launch.share(pending)):
                missing = {sample.id for sample in batch if (sample.id, arm, settings) not in done}
                if not isinstance(self.run.model, ModelConfig):  # each request costs money
                    batch = [sample for sample in batch if sample.id in missing]
                answered = self._answer_batch(arm, method, settings, batch)
                self.store.append([record for record in answered if record["case"] in missing], file)
                # The others are taken to be as far.
                progress.advance(bar, sum(map(len, pending[turn * launch.size : (turn + 1) * launch.size])))
        places = {(sample.id, arm, settings): place for place, batch in enumerate(everything) for sample in batch}
        self.store.gather(file, places)
        self.store.gather(SKIPS)

    def settings(self, method: "Method | Responses", manifest: str) -> str:
        """The hash of all that can change an answer, beside the case itself."""
        if isinstance(method, Responses):
            return digest([repr(method), manifest])
        return digest([*_identity(self.run, self.vlm), repr(method), self.run.max_new_tokens, manifest])

    def _answer_batch(
        self, arm: str, method: "Method | Responses", settings: str, batch: Sequence[Sample]
    ) -> Iterator[dict[str, Any]]:
        if isinstance(method, Responses):
            known, generation = method.answers(batch)
            yield from judged(known, arm, settings, generation, self.run.judge)
            return
        prompts: list[Prompt] = []
        shown: list[Sample] = []
        for sample in batch:
            try:
                prompts.append(_prompt(sample))
                shown.append(sample)
            except BadImage as error:
                yield records.failed(sample, arm, settings, Status.BAD_IMAGE, str(error))
        if prompts:
            assert self.vlm is not None
            generation = method.generate(self.vlm, prompts, max_new_tokens=self.run.max_new_tokens)
            self._count(arm, generation)
            yield from judged(shown, arm, settings, generation, self.run.judge)

    def _count(self, arm: str, generation: "Generation") -> None:
        """Notes what a method says it saved, on disk, so that a continued run's count is whole."""
        if generation.skips:
            self.store.append([{"arm": arm, **generation.skips}], SKIPS)

    def skips(self) -> dict[str, dict[str, int]]:
        """By arm, what was saved in all answers of the run so far."""
        totals: dict[str, Counter[str]] = {}
        for line in self.store.records(SKIPS):
            totals.setdefault(line.pop("arm"), Counter()).update(line)
        return {arm: dict(counts) for arm, counts in totals.items()}


def judged(
    samples: Sequence[Sample], arm: str, settings: str, generation: "Generation", judge: Judge
) -> Iterator[dict[str, Any]]:
    """The records of one batch's answers, judged together."""
    statuses = [records.status_of(generation, index) for index in range(len(samples))]
    spoken = [index for index, status in enumerate(statuses) if status.spoken]
    items = [item_of(samples[index], generation.texts[index]) for index in spoken]
    judgements = dict(zip(spoken, judge.judge(items), strict=True)) if items else {}
    for index, (sample, status) in enumerate(zip(samples, statuses, strict=True)):
        reason = "" if generation.reasons is None else generation.reasons[index]
        if status.excluded:
            yield records.failed(sample, arm, settings, status, reason)
            continue
        yield records.answered(
            sample,
            arm,
            settings,
            status=status,
            response=generation.texts[index],
            margin=float(generation.margins[index]),
            judgement=judgements.get(index, unspoken(judge)),
            judge=judge.name,
            prompt=None if generation.prompts is None else generation.prompts[index],
            reason=reason,
        )


def unspoken(judge: Judge) -> Judgement | None:
    """What an answer without text means: no verdict, where one was asked for; of a refusal nobody knows."""
    return Judgement(Verdict.NO_VERDICT) if judge.kind == "yes_no" else None


def item_of(sample: Sample, response: str) -> Item:
    """One answer as a judge is shown it; the picture is opened only if the judge asks."""
    image = None if sample.image is None else partial(open_image, sample.image)
    return Item(sample.id, sample.text, response, image, sample.gold, sample.tags.get("language", "en"))


def batches(items: Sequence[Thing], size: int) -> Iterator[Sequence[Thing]]:
    """Runs of ``size`` items in order; the last may be shorter."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _prompt(sample: Sample) -> "Prompt":
    from interp.vlm import Prompt

    return Prompt(sample.prompt, None if sample.image is None else open_image(sample.image), key=sample.id)


def _identity(run: Run, vlm: "VLM | None") -> list[object]:
    """The model, as far as it can change an answer; of one behind an API, all that its configuration says."""
    assert vlm is not None
    if isinstance(run.model, ModelConfig):
        return [vlm.name, vlm.revision, str(vlm.dtype), run.model.chat_template]
    return [vlm.name, repr(run.model)]


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)
