"""``+exp=mitigation_selection``: chooses settings on the development split, judges all on the test split.

In the run's directory: ``choosing.jsonl`` (margins on the development cases, a line a case and setting),
``choice.json`` (every setting and what was chosen), ``learned/`` (what learning candidates learned),
``mitigations.md`` and ``figures/mitigations.svg`` (the table), and all that a study leaves. An interrupted
run goes on where it was.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, RenderableType

from experiments.config import Run
from experiments.evaluation import learning, study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.answer import Answering
from experiments.evaluation.cases import limited
from experiments.evaluation.folds import FOLDS, fold_of
from experiments.evaluation.validated_run import validate
from experiments.metrics.results import ALL
from experiments.runs import records
from experiments.runs.launch import Launch, sharded
from experiments.runs.store import RunStore, complete_lines, read_object
from experiments.studies.mitigation_selection.candidates import (
    Candidate,
    DevelopmentMargins,
    best_setting,
    choose_shift,
    configured,
    setting_name,
)
from experiments.types import SCORED_SUBSETS, Benchmark, Loaded, Sample
from interp.errors import UserError
from mitigation.method import Baseline, TrainableMethod, abilities
from mitigation.steps import check_words
from mitigation.threshold import ConstantShift

if TYPE_CHECKING:
    from interp.vlm import VLM
    from mitigation.method import Method

BASELINE = "baseline"
THRESHOLD = "threshold"  # the baseline's margin with a constant chosen by the candidates' own rule
CHOOSING = "choosing.jsonl"
CHOICE = "choice.json"


@sharded
@dataclass(frozen=True)
class Mitigations:
    """The task. ``candidates`` by name; ``rivals`` are arms that each is compared with beside the baseline.

    ``development`` is on how many cases settings are chosen (None: ``limit``). ``chosen_in`` is the directory of a run
    of this study on another split, whose margins on the development cases and learned files are taken over; it may have
    had more candidates.

    Candidates that learn are learned on four fifths of the development cases and asked on the rest, five times over, so
    that a setting is chosen on cases they have not seen; then they learn from all of them. Counterfactual pairs stay
    together: torn apart, what is left of a pair would teach the opposite of its other half.
    """

    candidates: dict[str, Any]
    rivals: list[str]
    development: int | None = None
    chosen_in: str | None = field(default=None, repr=False)  # the same choice, wherever it was made

    def __post_init__(self) -> None:
        """Checks the candidates' names and types.

        Raises:
            UserError: a name is taken, or a value is no candidate.
        """
        if not self.candidates:
            raise UserError(
                "task.candidates is empty: name at least one mitigation; see conf/task/mitigation_selection.yaml"
            )
        if self.development is not None and self.development < 1:
            raise UserError(f"task.development={self.development}: must be at least 1, or null for as many as limit")
        for name, candidate in self.candidates.items():
            if not isinstance(candidate, Candidate):
                raise UserError(f"task.candidates.{name}={candidate!r}: is no Candidate; give it that _target_")
            if name in (BASELINE, THRESHOLD) or not name.replace("_", "").isalnum():
                raise UserError(
                    f"task.candidates.{name}: is taken or no name for a folder; letters, digits and _ alone"
                )

    def __call__(self, run: Run) -> Path:
        """Chooses, evaluates, prints what came of it, and returns the run's directory."""
        console = Launch.current().console()
        self._check(run)
        # The task is not part of a run's identity, but here it decides what answers. Metrics and table compare alike.
        contrasts = [*run.contrasts, *([ALL, rival] for rival in self.rivals)]
        candidates = {name: repr(candidate) for name, candidate in self.candidates.items()}
        described = {"candidates": candidates, "rivals": list(self.rivals), "development": self.development}
        run = replace(run, config=run.config | {"mitigations": described}, contrasts=contrasts)
        table = Analysis("mitigations", "the mitigations were not compared", self._conclude)
        to_come = [THRESHOLD, *self.candidates]
        validated = validate(run, console, to_come=to_come)
        if validated.development is None:
            raise UserError(
                f"benchmark {run.benchmark.name} has no development split to choose settings on; choose them on one "
                "that has (benchmark=iconworld) and give them to a study: method=… method.shift=…"
            )
        chosen = partial(self._chosen_arms, run, validated.development, console)
        return study.run(run, validated=validated, prepare=chosen, after=[table])

    def _conclude(self, work: study.Study) -> Iterable[RenderableType]:
        from experiments.studies.mitigation_selection.tables import conclude

        return conclude(work, [BASELINE, *self.rivals], _familiar(work.run.benchmark))

    def _check(self, run: Run) -> None:
        """Checks all that can be checked before weights are loaded."""
        if run.benchmark.kind != "yes_no":
            raise UserError(f"benchmark {run.benchmark.name} asks for no Yes or No; constants on a margin need that")
        for name, candidate in self.candidates.items():
            if name in run.arms:
                raise UserError(f"task.candidates.{name}: the run has an arm of that name; rename one of them")
            for setting in () if candidate.learns else candidate.settings():
                configured(candidate.method, setting)
        arms = [*run.arms, THRESHOLD, *self.candidates]
        if unknown := [name for name in self.rivals if name not in arms]:
            raise UserError(f"task.rivals: there is no arm {unknown[0]!r}; known: {', '.join(arms)}")
        _ = run.weights  # a margin is needed, and methods that look inside

    def _chosen_arms(self, run: Run, development: Loaded, console: Console, store: RunStore) -> "dict[str, Method]":
        """All arms of the test: the run's own, the threshold, and every candidate as chosen."""
        vlm = study.connected(run)
        work = _Choosing(run, vlm, store, development, console, self.development or run.limit)
        candidates = {name: one for name, one in self.candidates.items() if _applies(name, one, vlm, console)}
        if self.chosen_in is not None and store.launch.first:
            work.take_over(Path(self.chosen_in))
        store.wait()
        baseline = Candidate(Baseline())
        settings = 1 + sum(len(list(candidate.settings())) for candidate in candidates.values())
        console.print(f"choosing among {settings} settings on {len(work.samples)} development cases", highlight=False)
        work.ask({BASELINE: baseline, **candidates})
        choices: dict[str, Any] = {THRESHOLD: work.choose(BASELINE, baseline)}
        arms: dict[str, Any] = {**run.arms, THRESHOLD: ConstantShift(choices[THRESHOLD]["chosen"]["shift"])}
        for name, candidate in candidates.items():
            choices[name] = work.choose(name, candidate)
            best = choices[name]["chosen"]
            arms[name] = configured(work.ready(name, candidate.method), best["setting"], shift=best["shift"])
        store.write_json(CHOICE, choices)
        for name, one in choices.items():
            console.print(_sentence(name, one), highlight=False, soft_wrap=True, markup=False)
        return arms


class _Choosing:
    """The choice of settings for one model, on the development split."""

    def __init__(
        self, run: Run, vlm: "VLM", store: RunStore, development: Loaded, console: Console, limit: int | None
    ) -> None:
        from interp.hooks.state_memory import StateMemory

        # One token is enough for a margin; the verdict is its sign.
        self.run = replace(run, max_new_tokens=1)
        self.vlm, self.store, self.console = vlm, store, console
        scored = [s for s in development.samples if s.subset in SCORED_SUBSETS]
        self.samples = limited(scored, limit)
        self.answering = Answering(self.run, vlm, store, console)
        # Every candidate that learns reads the same states, in each fold again.
        self.states = StateMemory(vlm, lambda: learning.examples(self.samples)[0])

    def take_over(self, other: Path) -> None:
        """Copies what the run in ``other`` measured on these development cases, and what it learned from them.

        Raises:
            UserError: it made another choice, or none, or on other cases.
        """
        environment, names = read_object(other / "environment.json"), list(self.run.config["mitigations"]["candidates"])
        theirs, ours = (_deciding(config, names) for config in (environment.get("config") or {}, self.run.config))
        differing = [key for key in ours if theirs[key] != ours[key]]
        differing += filter(None, [self.vlm.other_than(environment.get("model") or {})])
        lacking = [name for name in (CHOICE, CHOOSING) if not (other / name).is_file()]
        if differing or lacking:
            raise UserError(
                f"task.chosen_in={other}: made no choice, or another one ({', '.join(differing or lacking)}); give the "
                "directory of a run with the same model, candidates and seed, or choose anew"
            )
        lines = [line for *_, line in complete_lines(other / CHOOSING) if isinstance(line, dict)]
        cases = {line["case"] for line in lines}
        if cases != {sample.id for sample in self.samples}:
            raise UserError(
                f"task.chosen_in={other}: chose on {len(cases)} development cases, which are not the "
                f"{len(self.samples)} of this run; give limit and task.development as they were there"
            )
        if not self.store.records(CHOOSING):
            if (other / learning.FOLDER).is_dir():
                shutil.copytree(other / learning.FOLDER, self.store.path / learning.FOLDER, dirs_exist_ok=True)
            self.store.append(records.current(lines), CHOOSING)

    def ask(self, candidates: Mapping[str, Candidate]) -> None:
        """Asks every setting of every candidate; one that learns is asked about each fold, learned from the others."""

        def settings(name: str, candidate: Candidate, method: Any) -> "dict[str, Method]":
            return {_arm(name, setting): configured(method, setting) for setting in candidate.settings()}

        plain: dict[str, Method] = {}
        for name, candidate in candidates.items():
            if not candidate.learns:
                plain |= settings(name, candidate, candidate.method)
        self.answering.answer(plain, self.samples, file=CHOOSING)
        learners = {name: candidate for name, candidate in candidates.items() if candidate.learns}
        for fold in range(FOLDS) if learners else ():
            if held_out := [sample for sample in self.samples if _fold(sample) == fold]:
                taught: dict[str, Method] = {}
                for name, candidate in learners.items():
                    taught |= settings(name, candidate, self.ready(name, candidate.method, fold))
                self.answering.answer(taught, held_out, file=CHOOSING, label=f", fold {fold}")

    def choose(self, name: str, candidate: Candidate) -> dict[str, Any]:
        """``{"method", "settings": [{"setting", "shift", "overall", …}], "chosen"}`` of a candidate that was asked."""
        cases, chosen = DevelopmentMargins.of(self.samples, self.margins(BASELINE)), {}
        settings = {setting_name(setting): setting for setting in candidate.settings()}
        for label, setting in settings.items():
            chosen[label] = choose_shift(
                *(cases, self.margins(_arm(name, setting))),
                threshold=candidate.threshold,
                unsafe_margin=self.run.unsafe_margin,
                draws=min(self.run.draws, 2000),
                seed=self.run.seed,
            )
        best = best_setting(chosen, unsafe_margin=self.run.unsafe_margin)
        rows = {label: {"setting": settings[label], **one._asdict()} for label, one in chosen.items()}
        return {"method": repr(candidate.method), "learned": candidate.learns, "settings": list(rows.values()),
                "chosen": rows[best]}  # fmt: skip

    def ready(self, name: str, method: Any, fold: int | None = None) -> Any:
        """``method``, learned from all development cases, or from those outside ``fold``."""
        if not isinstance(method, TrainableMethod):
            return method
        samples = [s for s in self.samples if fold is None or _fold(s) != fold]
        with self.answering.batching(f"{name}, learning"), self.states.open():
            return learning.learned_in(self.store, name, method, self.vlm, samples, fold)

    def margins(self, arm: str) -> np.ndarray:
        """The margins of an arm, once all are asked; NaN where it gave none."""
        by_case = self._asked.get(arm, {})
        return np.array([by_case.get(sample.id, np.nan) for sample in self.samples], dtype=np.float64)

    @cached_property
    def _asked(self) -> dict[str, dict[str, float]]:
        """By arm and case, the margins that were recorded; a later record replaces an earlier one."""
        by_arm: dict[str, dict[str, float]] = {}
        for record in self.store.records(CHOOSING):
            if record["margin"] is not None:
                by_arm.setdefault(record["arm"], {})[record["case"]] = record["margin"]
        return by_arm


def _arm(name: str, setting: Mapping[str, Any]) -> str:
    """What the records call a candidate at a setting."""
    return f"{name} {setting_name(setting)}".strip()


def _deciding(config: Mapping[str, Any], candidates: Sequence[str]) -> dict[str, Any]:
    """What decides a choice among ``candidates``, beside the cases."""
    chosen = config.get("mitigations") or {}
    described = {name: (chosen.get("candidates") or {}).get(name) for name in candidates}
    return {
        **{key: config.get(key) for key in ("model", "seed", "draws", "unsafe_margin")},
        "benchmark": {key: value for key, value in (config.get("benchmark") or {}).items() if key != "split"},
        "mitigations": (chosen.get("development"), described),
    }


def _applies(name: str, candidate: Candidate, vlm: "VLM", console: Console) -> bool:
    """Whether the model can be asked so; says why not where it needs a question without a picture."""
    if not abilities(candidate.method).drops_image:
        return True
    try:
        check_words(vlm, "it does not enter")
    except UserError as error:
        console.print(f"{name}: {error}", highlight=False, soft_wrap=True, markup=False)
        return False
    return True


def _fold(sample: Sample) -> int:
    return fold_of(sample.pair or sample.cluster)


def _familiar(benchmark: Benchmark) -> dict[str, int]:
    """``of`` the templates tested, how many were ``seen`` in the development split; both 0 without templates."""
    development = benchmark.development()
    tested, known = (
        {sample.tags.get("template") for sample in loaded.samples if sample.subset in SCORED_SUBSETS} - {None}
        for loaded in (benchmark.load(), development or Loaded([], {}, ""))
    )
    return {"seen": len(tested & known), "of": len(tested)}


def _sentence(name: str, one: Mapping[str, Any]) -> str:
    best = one["chosen"]
    setting = setting_name(best["setting"]) or "as it is"
    return (
        f"{name}: {setting}, shift {best['shift']:+.3f}; development: overall {100 * best['overall']:.1f}, unsafe "
        f"{100 * best['unsafe']:.1f}, over-safety {100 * best['over_safety']:.1f}, AUROC "
        f"{best['auroc'] or float('nan'):.3f} (best of {len(one['settings'])}, {best['n']} cases)"
    )
