"""From cases to records: arms answer in fixed batches, all of them one batch before the next, and a judge reads them.

Batches depend only on cases and settings (``experiments.evaluation.cases``), so a resumed run equals an
uninterrupted one. An incomplete batch is answered again, and only its missing records are appended.

There are two ways to obtain a verdict (``protocol``). ``generate``: the answer is generated and a judge reads it.
``score``: the method generates a single token, and the verdict is the sign of that arm's margin between Yes and No. The
full answer is then not seen, so one that is neither Yes nor No gets a verdict as well. Imports neither torch nor
transformers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.benchmarks.checks import content_of
from experiments.benchmarks.images import BadImage
from experiments.config import Run, digest
from experiments.evaluation.cases import (
    Opened,
    by_prefill,
    form,
    noted,
    prefetch_images,
    prompt_of,
    refused_size,
    rolled_out,
)
from experiments.evaluation.fitting import InFolds, part_of
from experiments.evaluation.scoring import judge_batch, scored
from experiments.runs import record_fields
from experiments.runs.responses import Responses
from experiments.runs.store import PREDICTIONS, RunStore
from experiments.types import Sample, Status
from interp.batching import BatchContext, merged, out_of_memory
from interp.errors import UserError
from mitigation.method import OWES, MethodFault, abilities, check_answers
from mitigation.steps import shared_steps

if TYPE_CHECKING:
    from experiments.api.config import ApiConfig
    from interp.prefill_cache import PrefillCache
    from interp.vlm import VLM, Generation, Prompt
    from mitigation.method import Method

BASELINE = "baseline"


@dataclass(frozen=True)
class _Arm:
    """An arm to be asked, and what is recorded of it: each case's latest record, and the settings it must have."""

    name: str
    method: "Method | Responses"
    settings: Mapping[str, str]  # by case
    latest: Mapping[str, dict[str, Any]]  # as it was before anything is asked

    def holds(self, sample: Sample) -> bool:
        """Return whether the answer to the case as it is now is recorded."""
        record = self.latest.get(sample.id)
        if record is None or record["status"] == Status.TRANSPORT_FAILED:
            return False
        return record["settings"] == self.settings[sample.id]

    def changed(self, sample: Sample) -> bool:
        """Return whether the recorded answer is of another model, of other settings or to other words."""
        record = self.latest.get(sample.id, {"status": Status.TRANSPORT_FAILED})
        return record["status"] != Status.TRANSPORT_FAILED and not self.holds(sample)

    def lacks(self, batch: Sequence[Sample]) -> bool:
        """Return whether an answer to the batch is not recorded."""
        return not all(map(self.holds, batch))

    def to_ask(self, batch: Sequence[Sample], *, each_costs: bool) -> list[Sample]:
        """Return which cases of the batch to ask.

        Ask only the missing cases if requests are billed, or if the batch was complete and some cases changed.
        Otherwise ask the whole batch again, so that results are bit-identical.
        """
        missing = [sample for sample in batch if not self.holds(sample)]
        only_missing = each_costs or all(sample.id in self.latest for sample in missing)
        return missing if only_missing else list(batch)


@dataclass
class Answering:
    """Answers the cases of one run with one model and one judge; no model where all arms bring their own responses."""

    run: Run
    vlm: "VLM | None"
    store: RunStore
    console: Console

    def __post_init__(self) -> None:
        self._rows: dict[str, int] = {}  # by kind of work, the batch size after memory ran out
        self._each_costs = self.run.endpoint is not None  # each request costs money
        self._computes = self.vlm is not None and not self._each_costs
        self._scored = self.run.protocol == "score"
        self.new_tokens = 1 if self._scored else self.run.max_new_tokens  # the most of an answer

    def answer(
        self,
        arms: "Mapping[str, Method | Responses]",
        samples: Sequence[Sample],
        *,
        file: str = PREDICTIONS,
        label: str = "",
    ) -> None:
        """Record the answers of all ``arms`` to ``samples``; skip recorded ones that did not fail in transport.

        All arms answer a batch before the next one, so that what they ask alike is computed once
        (``interp.prefill_cache``). A case whose content changed is asked again. A case with another description
        only (cluster, subset, pair) keeps its answer.

        Args:
            arms: the methods by arm.
            samples: the cases.
            file: the JSON lines that get the records.
            label: what the progress bar says after the arms.

        Raises:
            UserError: one prompt alone does not fit into memory.
            MethodFault: a method fails. The answers so far are on disk, and the same command goes on from there.
        """
        recorded = self._recorded(arms, samples, file)
        if changed := sum(arm.changed(sample) for arm in recorded.values() for sample in samples):
            self.console.print(
                f"{changed:,} answers in {file} are of another model (weights, processor, chat template), other "
                "settings or cases that have changed since, and are asked again",
                highlight=False,
                soft_wrap=True,
            )
        batches: BatchContext | None = getattr(self.vlm, "batches", None)
        formed = form(samples, None if batches is None else batches.lengths, self.run.batch_rule)
        pending = [batch for batch in formed if any(arm.lacks(batch) for arm in recorded.values())]
        launch, shares = self.store.launch, self._computes and len(arms) > 1
        with (
            _progress(self.console, hidden=not samples or (not pending and file != PREDICTIONS)) as progress,
            self._prefills() if shares else nullcontext(),
            nullcontext() if self.vlm is None else shared_steps(self.vlm),
            closing(prefetch_images(launch.share(pending))) as ready,
        ):
            title = f"{next(iter(arms), '') if len(arms) < 2 else f'{len(arms)} arms'}{label}"
            bar = progress.add_task(title, total=len(samples), completed=len(samples) - sum(map(len, pending)))
            for step, (batch, pictures) in enumerate(ready):
                opened = {sample.id: picture for sample, picture in zip(batch, pictures, strict=True)}
                for name in by_prefill(arms):
                    if due := recorded[name].to_ask(batch, each_costs=self._each_costs):
                        if self._computes:
                            self.prefills.next_method()
                        self._answer_batch(recorded[name], due, opened, file)
                if shares:
                    self.prefills.clear()
                answered = pending[step * launch.size : (step + 1) * launch.size]  # by the other processes too
                progress.advance(bar, sum(map(len, answered)))
        self.store.wait()

    def _recorded(
        self, arms: "Mapping[str, Method | Responses]", samples: Sequence[Sample], file: str
    ) -> dict[str, _Arm]:
        latest: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in arms}
        for line in self.store.records(file):
            if line["arm"] in latest:
                latest[line["arm"]][line["case"]] = line
        self.store.wait()  # all processes have read the same records before one adds to them
        settings = {name: self.settings(one, samples) for name, one in arms.items()}
        return {name: _Arm(name, one, settings[name], latest[name]) for name, one in arms.items()}

    def batching(self, work: str) -> AbstractContextManager[object]:
        """Form the batches of ``vlm.batches`` by the run's rule for an arm's answers or any other ``work``.

        If memory runs out, ``work`` goes on with half the batch size and says so.
        """
        if self.vlm is None:
            return nullcontext()

        def lowered(rows: int) -> None:
            self._rows[work] = rows
            self.console.print(f"{work}: out of memory; asking {rows} at once from here on", highlight=False)

        return self.vlm.batches.by(
            self.run.batch_rule,
            on_lowered=lowered,
            rows=self._rows.get(work, self.run.batch_size),
            give_way=self.prefills.give_way if self._computes else lambda: False,
        )

    @cached_property
    def prefills(self) -> "PrefillCache":
        """The prompts' prefills that the arms of a batch share."""
        from interp.prefill_cache import PrefillCache

        return PrefillCache()

    @contextmanager
    def _prefills(self) -> Iterator[None]:
        """Share prefills between arms, or print once why that is not possible."""
        before = self.prefills.off
        with self.prefills.used_by(cast("VLM", self.vlm)):
            if self.prefills.off != before:
                self.console.print(self.prefills.off, highlight=False, soft_wrap=True, markup=False)
            yield

    def settings(self, method: "Method | Responses", samples: Sequence[Sample]) -> dict[str, str]:
        """Return by case a hash of all that can change its answer: model, method, token budget and content."""
        with_description = abilities(method).needs_description
        parts = method.parts.values() if isinstance(method, InFolds) else [method]
        shared = {id(part): self._settings(part) for part in parts}
        return {
            sample.id: digest([
                shared[id(part_of(method, sample.id))],
                content_of(sample),
                *([sample.described] if with_description else []),
            ])
            for sample in samples
        }  # fmt: skip

    def _settings(self, method: "Method | Responses") -> list[object]:
        if isinstance(method, Responses):
            return [repr(method), method.fingerprint()]
        identity: list[object] = [*cast("VLM", self.vlm).identity] if self._computes else self._endpoint()
        return [*identity, repr(method), self.new_tokens, *(["score"] if self._scored else [])]

    def _endpoint(self) -> list[object]:
        """Return what identifies a model behind an API: its whole configuration."""
        endpoint = cast("ApiConfig", self.run.endpoint)
        return [endpoint.name, repr(endpoint), *endpoint.rendering.values(), *filter(None, [endpoint.thinking])]

    def _answer_batch(self, arm: _Arm, batch: Sequence[Sample], pictures: Mapping[str, Opened], file: str) -> None:
        """Answer a batch under an arm, have the answers judged, and record the answers that are new."""
        name, method = arm.name, arm.method
        before = {sample.id for sample in batch if arm.holds(sample)}
        with self.batching(name):
            if isinstance(method, Responses):
                samples, generation = method.answers(batch)
                lines = judge_batch(samples, name, generation, self.run.judge)
            else:
                reasons = {sample.id: reason for sample in batch if (reason := self.unseen(pictures[sample.id]))}
                lines = [
                    record_fields.failed(sample, name, Status.BAD_IMAGE, reasons[sample.id])
                    for sample in batch
                    if sample.id in reasons
                ]
                if samples := [sample for sample in batch if sample.id not in reasons]:
                    # A copy for each arm, whose method may edit it in place.
                    copies = [[image.copy() for image in cast("Any", pictures[sample.id])] for sample in samples]
                    prompts = list(map(prompt_of, samples, copies))
                    generation = self.generate(name, method, prompts)
                    lines += self.judged(samples, name, generation)
            for line in lines:
                line["settings"] = arm.settings[line["case"]]
                if isinstance(method, InFolds):
                    line["fold"] = method.fold(line["case"])
            self.store.append([line for line in lines if line["case"] not in before], file)

    def unseen(self, picture: Opened) -> str:
        """Return why the model cannot be shown the picture: its file, or its size for the processor; "" if it can."""
        if isinstance(picture, BadImage):
            return str(picture)
        return refused_size(picture, None if self.vlm is None else self.vlm.batches.lengths)

    def judged(self, samples: Sequence[Sample], arm: str, generation: "Generation") -> list[dict[str, Any]]:
        """Return the records of an arm's answers, with verdicts by the run's protocol."""
        if self._scored:
            return scored(samples, arm, generation)
        return judge_batch(samples, arm, generation, self.run.judge)

    def generate(self, arm: str, method: "Method", prompts: "Sequence[Prompt]") -> "Generation":
        """Return the arm's answers to some prompts; nothing is recorded.

        Raises:
            MethodFault: names the arm; its method raised what it should not, or did not return what it owes.
            UserError: the method refuses these prompts, or the model does.
        """
        vlm = self.vlm
        assert vlm is not None
        prompts = rolled_out(lambda some: self.generate(arm, method, some), prompts)
        margins = self.run.benchmark.kind == "yes_no" and self.run.endpoint is None

        def answers(part: "Sequence[Prompt]") -> "Generation":
            given = method.generate(vlm, part, max_new_tokens=self.new_tokens)
            check_answers(method, given, part, margins=margins)
            return given

        try:
            generation = merged(vlm.batches.limit.parts(prompts, answers))
        except MethodFault as fault:
            raise MethodFault(f"arm {arm} ({method}): {fault}") from fault
        except (UserError, OSError):
            raise
        except Exception as error:
            if arm == BASELINE or out_of_memory(error):
                raise
            from mitigation.own_file import line_in

            words = f"{type(error).__name__}: {error}".splitlines()[0]
            path = getattr(method, "path", None)  # of a user's file
            where = line_in(Path(path), error) if isinstance(path, str) else ""
            raise MethodFault(f"arm {arm} ({method}) raised {words}{where}; {OWES}") from error
        return noted(replace(generation, sampled=generation.sampled or abilities(method).sampled), prompts)

    def remarks(self) -> dict[str, Any]:
        """Return what environment.json says of how the answers were made, without empty entries.

        ``batch_rows`` are the batch sizes after memory ran out. ``requests`` counts what this launch asked of an API.
        """
        entries = {"batch_rows": self._rows, "requests": getattr(self.vlm, "requests", 0)}
        return {name: value for name, value in entries.items() if value}


def _progress(console: Console, *, hidden: bool) -> Progress:
    columns = (TextColumn("{task.description:<28}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=hidden)
