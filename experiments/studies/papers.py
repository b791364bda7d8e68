"""``+exp=papers``: one model on MMSafeAware (arXiv 2502.11184) and MOSSBench (arXiv 2406.17806).

Each benchmark is a study of its own, in its own run directory. The weights are loaded once.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from experiments.benchmarks import mmsafeaware, mossbench
from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.validated_run import ValidatedRun, validate
from experiments.judges.yes_no import Automatic
from experiments.report.tables import say
from experiments.runs.launch import Launch, sharded
from interp.errors import UserError

# Key of the command line → what to type for it.
TYPED: Mapping[str, str] = {
    "mmsafeaware": f"mmsafeaware=<folder> (git clone {mmsafeaware.REPOSITORY})",
    "mossbench": f"mossbench=<folder> (git clone {mossbench.REPOSITORY})",
}


@sharded
@dataclass(frozen=True)
class Papers:
    """The task, on the clones in the folders ``mmsafeaware`` and ``mossbench``. A folder that is None is left out.

    Args:
        sets: the sets of MOSSBench: benign, contrast or both.
        answer_tokens: the longest answer in words. Verdicts take ``run.max_new_tokens``.

    Raises:
        UserError: the set is unknown, or no token is left to answer with.
    """

    sets: str = "both"
    answer_tokens: int = 128
    mmsafeaware: str | None = None
    mossbench: str | None = None

    def __post_init__(self) -> None:
        if self.sets not in mossbench.PARTS:
            raise UserError(f"task.sets={self.sets!r} is not known; known: {', '.join(mossbench.PARTS)}; choose one")
        if self.answer_tokens < 1:
            raise UserError(f"task.answer_tokens={self.answer_tokens}: must be at least 1")

    def __call__(self, run: Run) -> None:
        """Run one study after the other. Check both before the first question.

        Raises:
            UserError: no folder is given, or a benchmark cannot be used.
        """
        runs: dict[str, Run] = {}
        if self.mmsafeaware:
            verdicts = mmsafeaware.MMSafeAware(root=str(self.mmsafeaware), strict=run.strict)
            runs["mmsafeaware"] = _on(run, "mmsafeaware", verdicts, run.max_new_tokens)
        if self.mossbench:
            refusals = mossbench.MOSSBench(root=str(self.mossbench), strict=run.strict, sets=self.sets)
            runs["mossbench"] = _on(run, "mossbench", refusals, self.answer_tokens)
        if not runs:
            raise UserError(
                f"{run.name} has no benchmark; give the folder of at least one: {', '.join(TYPED.values())}"
            )
        validated = {name: _validated(part, name) for name, part in runs.items()}
        vlm: Any = None
        lines = []
        for name, part in runs.items():
            with study.open_study(part, validated=validated[name], vlm=vlm, announce=True) as work:
                vlm = work.vlm
                work.answer_all()
                work.conclude(work.attention(), alone=False)
                lines.append(f"report of {name}: {work.store.path / 'report.html'}")
        if Launch.current().first:
            if left_out := [typed for name, typed in TYPED.items() if name not in runs]:
                say(f"Left out, because no folder was given: {', '.join(left_out)}.")
            say(*lines)
            work.say_next()


def _on(run: Run, name: str, benchmark: Any, tokens: int) -> Run:
    """Return the run on one benchmark, under its own name and with its kind's judge."""
    name, described = f"{run.name}_{name}", asdict(benchmark)
    config = run.config | {"name": name, "max_new_tokens": tokens, "benchmark": described}
    fits = run.judge_named and run.judge.kind == benchmark.kind
    judge = run.judge if fits else Automatic().for_kind(benchmark.kind)
    return replace(run, name=name, benchmark=benchmark, judge=judge, max_new_tokens=tokens, config=config)


def _validated(run: Run, key: str) -> ValidatedRun:
    """Return the arms and cases of one benchmark; messages name ``key``, which gave its folder."""
    try:
        return validate(run)
    except UserError as error:
        raise UserError(str(error).replace("benchmark root ", f"{key}=").replace("benchmark.root", key)) from error
