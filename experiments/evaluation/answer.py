"""From cases to records: a method answers in fixed batches, and a judge reads the answers.

Batches depend only on cases and settings (``experiments.evaluation.batching``), so a resumed run equals an
uninterrupted one: a batch that is not fully recorded is answered again as a whole, and only its missing records are
appended.

There are two ways to obtain a verdict (``protocol``). ``generate``: the answer is generated and a judge reads it.
``score``: the method generates a single token, and the verdict is the sign of that arm's margin between Yes and No. The
full answer is then not seen, so one that is neither Yes nor No gets a verdict as well. Imports neither torch nor
transformers.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.benchmarks.checks import content_of
from experiments.benchmarks.images import BadImage
from experiments.config import Run, digest
from experiments.evaluation.batching import Opened, form, opened, prompt_of
from experiments.evaluation.judging import judge_batch, scored
from experiments.evaluation.steps import STEPS, StepStore
from experiments.runs import records
from experiments.runs.directory import PREDICTIONS, RunStore
from experiments.runs.stopping import written_first
from experiments.types import AnsweredElsewhere, Sample, Status
from interp.batching import BatchContext, merged, out_of_memory
from interp.errors import UserError
from mitigation.method import OWES, MethodFault, abilities, check_answers
from mitigation.own_file import line_in
from mitigation.steps import kept_by

if TYPE_CHECKING:
    from interp.speed.vision_cache import FeatureCache
    from interp.vlm import VLM, Generation, Prompt
    from mitigation.method import Method

BASELINE = "baseline"
SKIPS = "skips.jsonl"
COST = "cost.jsonl"  # a line a batch: its cases, tokens, seconds, and what its steps took
MEMORY = "memory.jsonl"  # a line whenever memory ran out: the arm, and its batch size from then on


@dataclass(frozen=True)
class _Recorded:
    """What is recorded of one arm: the latest record of each case, and the settings that it must have to count."""

    arm: str
    latest: Mapping[str, dict[str, Any]]
    settings: Mapping[str, str]  # by case

    @classmethod
    def of(cls, lines: list[dict[str, Any]], arm: str, settings: Mapping[str, str]) -> "_Recorded":
        return cls(arm, {line["case"]: line for line in lines if line["arm"] == arm}, settings)

    def holds(self, sample: Sample) -> bool:
        """Whether the answer to the case as it is now is recorded."""
        record = self.latest.get(sample.id)
        if record is None or record["status"] == Status.TRANSPORT_FAILED:
            return False
        return record["settings"] == self.settings[sample.id]

    def to_ask(self, batch: list[Sample], done: Set[str]) -> list[Sample]:
        """The whole batch, or of one that was answered before, and of which cases have changed since, those alone."""
        due = [sample for sample in batch if sample.id not in done]
        return due if all(sample.id in self.latest for sample in due) else batch

    def described_anew(self, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        """The records of cases that are described otherwise than when they were answered, with today's description."""
        found = []
        for sample in samples:
            record, described = self.latest[sample.id], records.description(sample)
            if any(record.get(name) != value for name, value in described.items()):
                found.append(record | described)
        return found

    def key(self, sample: Sample) -> records.Key:
        return sample.id, self.arm, self.settings[sample.id]


@dataclass
class Answering:
    """Answers the cases of one run with one model and one judge; no model where all arms bring their own responses."""

    run: Run
    vlm: "VLM | None"
    store: RunStore
    console: Console

    def answer(
        self,
        arm: str,
        method: "Method | AnsweredElsewhere",
        samples: Sequence[Sample],
        *,
        file: str = PREDICTIONS,
        label: str | None = None,
        fold: int | None = None,
    ) -> None:
        """Records the answers of ``method`` to ``samples``; skips recorded ones that did not fail in transport.

        A case whose content was changed since is asked again; one that was only described anew (cluster, subset, pair)
        keeps its answer. ``fold`` is that of the cases, where the method was learned from the others.

        Raises:
            UserError: the method cannot be asked by this run's protocol, or one prompt alone does not fit into memory.
        """
        if self._scored and (reason := abilities(method).unscored):
            raise UserError(f"{arm} cannot be asked with protocol=score: {reason}")
        settings = self.settings(method, samples)
        recorded = _Recorded.of(self.store.records(file), arm, settings)
        done = {sample.id for sample in samples if recorded.holds(sample)}
        batches: BatchContext | None = getattr(self.vlm, "batches", None)
        everything = form(samples, None if batches is None else batches.lengths, self.run.batch_rule)
        pending = [batch for batch in everything if any(sample.id not in done for sample in batch)]
        launch = self.store.launch
        if self.run.endpoint is not None:  # each request costs money
            work = [[s for s in batch if s.id not in done] for batch in launch.share(pending)]
        else:  # a batch that was interrupted as a whole, so that its answers have the same bits
            work = [recorded.to_ask(batch, done) for batch in launch.share(pending)]
        with (
            _progress(self.console, hidden=not pending and file != PREDICTIONS) as progress,
            self.batching(arm),
            self._features(),
            self._steps(),
            closing(opened(work, workers=self.run.image_workers)) as ready,
        ):
            waiting = sum(map(len, pending))
            bar = progress.add_task(label or arm, total=len(samples), completed=len(samples) - waiting)
            for turn, (batch, pictures) in enumerate(ready):
                with written_first():
                    answered = list(self._answer_batch(arm, method, "", batch, pictures))
                    stamp = {} if fold is None else {"fold": fold}
                    fresh = [r | {"settings": settings[r["case"]]} | stamp for r in answered if r["case"] not in done]
                    self.store.append(fresh, file)
                # The other processes are assumed to be as far.
                progress.advance(bar, sum(map(len, pending[turn * launch.size : (turn + 1) * launch.size])))
        if launch.first and (anew := recorded.described_anew([s for s in samples if s.id in done])):
            self.store.append(anew, file)
        places = {recorded.key(s): place for place, batch in enumerate(everything) for s in batch}
        self.store.gather(file, places)
        self.store.gather(SKIPS)
        self.store.gather(STEPS)
        self.store.gather(COST)
        self.store.gather(MEMORY)

    def batching(self, work: str) -> AbstractContextManager[object]:
        """While open, ``vlm.batches`` forms batches by the run's rule, for an arm's answers or any other ``work``.

        Where memory runs out, ``work`` goes on with half, says so, and begins with that when the run is continued.
        """
        if self.vlm is None:
            return nullcontext()
        noted = partial(self._note_memory, work)
        return self.vlm.batches.by(self.run.batch_rule, on_lowered=noted, rows=self._fitted(work))

    def _fitted(self, work: str) -> int:
        """What is known to fit into memory at once."""
        fitted = [line["rows"] for line in self.store.records(MEMORY) if line["arm"] == work]
        return min([self.run.batch_size, *fitted])

    @property
    def _scored(self) -> bool:
        return self.run.protocol == "score"

    @property
    def _new_tokens(self) -> int:
        return 1 if self._scored else self.run.max_new_tokens

    @cached_property
    def features(self) -> "FeatureCache":
        """The image features that the arms of this run share."""
        from interp.speed.vision_cache import FeatureCache

        return FeatureCache(self.run.feature_cache_mib)

    def _features(self) -> AbstractContextManager[None]:
        if self.vlm is None or self.run.endpoint is not None:
            return nullcontext()
        from interp.speed.vision_cache import shared_features

        return shared_features(self.vlm, self.features)

    def _steps(self) -> AbstractContextManager[None]:
        if self.vlm is None:
            return nullcontext()
        return kept_by(StepStore(self.store, self.vlm, _identity(self.run, self.vlm)))

    def settings(self, method: "Method | AnsweredElsewhere", samples: Sequence[Sample]) -> dict[str, str]:
        """By case, a hash of everything that can change its answer: model, method, token budget, and its content."""
        shared, told = self._settings(method), abilities(method).needs_description
        return {
            sample.id: digest([shared, content_of(sample), *([sample.described] if told else [])]) for sample in samples
        }

    def _settings(self, method: "Method | AnsweredElsewhere") -> list[object]:
        if isinstance(method, AnsweredElsewhere):
            return [repr(method), method.fingerprint()]
        return [*_identity(self.run, self.vlm), repr(method), self._new_tokens, *(["score"] if self._scored else [])]

    def _answer_batch(
        self,
        arm: str,
        method: "Method | AnsweredElsewhere",
        settings: str,
        batch: Sequence[Sample],
        pictures: Sequence[Opened],
    ) -> Iterator[dict[str, Any]]:
        if isinstance(method, AnsweredElsewhere):
            known, generation = method.answers(batch)
            yield from judge_batch(known, arm, settings, generation, self.run.judge)
            return
        prompts: list[Prompt] = []
        shown: list[Sample] = []
        for sample, picture in zip(batch, pictures, strict=True):
            if isinstance(picture, BadImage):
                yield records.failed(sample, arm, settings, Status.BAD_IMAGE, str(picture))
            else:
                prompts.append(prompt_of(sample, picture))
                shown.append(sample)
        if prompts:
            generation = self._generate(arm, method, prompts)
            if self._scored:
                yield from scored(shown, arm, settings, generation)
            else:
                yield from judge_batch(shown, arm, settings, generation, self.run.judge)

    def _generate(self, arm: str, method: "Method", prompts: "Sequence[Prompt]") -> "Generation":
        vlm = self.vlm
        assert vlm is not None
        margins = self.run.benchmark.kind == "yes_no" and self.run.endpoint is None

        def answers(part: "Sequence[Prompt]") -> "Generation":
            given = method.generate(vlm, part, max_new_tokens=self._new_tokens)
            check_answers(method, given, part, margins=margins)
            return given

        begun = time.perf_counter()
        try:
            generation = merged(vlm.batches.limit.parts(prompts, answers))
        except MethodFault as fault:
            raise MethodFault(f"arm {arm} ({method}): {fault}") from fault
        except (UserError, OSError):
            raise
        except Exception as error:
            if arm == BASELINE or out_of_memory(error):
                raise
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            where = _line(error, getattr(method, "path", None))
            raise MethodFault(f"arm {arm} ({method}) raised {words}{where}; {OWES}") from error
        self._count(arm, prompts, generation, time.perf_counter() - begun)
        return replace(generation, sampled=generation.sampled or abilities(method).sampled)

    def _note_memory(self, arm: str, rows: int) -> None:
        self.store.append([{"arm": arm, "rows": rows}], MEMORY)
        self.console.print(f"{arm}: out of memory; asking {rows} at once from here on", highlight=False, markup=False)

    def efficiency(self) -> dict[str, Any]:
        """For environment.json: image features reused in this launch, and batch sizes lowered for lack of memory."""
        fitted: dict[str, int] = {}
        for line in self.store.records(MEMORY):
            fitted[line["arm"]] = min(line["rows"], fitted.get(line["arm"], line["rows"]))
        found: dict[str, Any] = {"batch_rows": fitted} if fitted else {}
        return found | ({"vision_features": self.features.counts()} if self.features.reused else {})

    def shared(self) -> list[str]:
        """A sentence on the image features reused in this launch; empty where none were."""
        known = self.features
        if not known.reused:
            return []
        return [
            f"The image features of {known.reused:,} of {known.reused + known.computed:,} pictures were those of an "
            f"earlier arm: {known.seconds:.1f} s saved, {known.counts()['mib']:.1f} MiB held."
        ]

    def _count(self, arm: str, prompts: "Sequence[Prompt]", generation: "Generation", seconds: float) -> None:
        """Keeps what the batch took and what it was spared on disk, so that a continued run's totals are complete."""
        batch = {"arm": arm, "first": prompts[0].key}
        if generation.skips:
            self.store.append([batch | generation.skips], SKIPS)
        tokens = sum(map(len, generation.token_ids))
        taken = {"cases": len(prompts), "tokens": tokens, "seconds": seconds}
        self.store.append([batch | taken | (generation.spent or {})], COST)

    def skips(self) -> dict[str, dict[str, int]]:
        """By arm, the work skipped in the run so far; of a batch that was answered twice, the last counts."""
        return self._totals(SKIPS)

    def cost(self) -> dict[str, dict[str, float]]:
        """By arm, its cases with their tokens and seconds in the run so far, its development split's among them.

        ``steps``, ``step_tokens`` and ``step_seconds`` are those of the questions that it asked before its answers.
        ``seconds`` are what the arm would have taken alone: those of steps that another arm or an earlier launch had
        asked (``known_seconds``) are added to its own.
        """
        totals = self._totals(COST)
        for one in totals.values():
            one["seconds"] = round(one["seconds"] + one.get("known_seconds", 0.0), 3)
        return totals

    def _totals(self, file: str) -> dict[str, dict[str, Any]]:
        latest = {(line.pop("arm"), line.pop("first")): line for line in self.store.records(file)}
        totals: dict[str, Counter[str]] = {}
        for (arm, _), counts in latest.items():
            totals.setdefault(arm, Counter()).update(counts)
        return {arm: dict(counts) for arm, counts in totals.items()}


def _identity(run: Run, vlm: "VLM | None") -> list[object]:
    """What identifies the model for the settings hash; for one behind an API, its whole configuration."""
    assert vlm is not None
    if run.endpoint is None:
        return [vlm.name, vlm.revision, str(vlm.dtype), run.weights.chat_template, *run.weights.pixel_bounds]
    return [vlm.name, repr(run.model)]


def _line(error: Exception, file: Any) -> str:
    """Where in the file of a user's own method it happened; nothing for other methods."""
    return line_in(Path(file), error) if isinstance(file, str) else ""


def _progress(console: Console, *, hidden: bool) -> Progress:
    columns = (TextColumn("{task.description:<28}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=hidden)
