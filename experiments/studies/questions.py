"""What studies share: how they start on the baseline, what they check first, and their questions.

If a question cannot be answered, one sentence says why, and the other questions go on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.validated_run import validate
from experiments.report.sections import Analysis, guarded
from interp.errors import UserError

Step = Callable[[Any], Any]


class Questions:
    """The questions of the analysis ``name``, whose run is in ``folder``.

    ``unanswered`` maps a question to the reason. A ``UserError`` is a reason. In a run any other exception is a
    failure: it has a traceback, the command ends with exit code 1, and the same command tries again.
    """

    def __init__(self, name: str = "", folder: Path | None = None) -> None:
        """Let other exceptions pass if there is no ``folder`` (in Python, without a run)."""
        self.name, self.folder, self.failed = name, folder, False
        self.unanswered: dict[str, str] = {}

    @contextmanager
    def guarded(self, question: str) -> Iterator[None]:
        """Note why the block cannot answer ``question`` if it raises an exception. The name is also a file's name."""
        if self.folder is None:
            with self._reason(question):
                yield
            return
        missing = f"the question {question} was not answered"
        with (
            guarded(self.folder, f"{self.name}_{question}", missing, part_of=self.name) as outcome,
            self._reason(question),
        ):
            yield
        if outcome.failed:
            self.unanswered[question], self.failed = outcome.failed, True

    @contextmanager
    def _reason(self, question: str) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self.unanswered[question] = str(error)

    def details(self) -> dict[str, Any]:
        """Return what the study's JSON file says; after a failure it fits no settings, so it is measured again."""
        return {"unanswered": self.unanswered, **({"settings": None} if self.failed else {})}


def check_sizes(task: object, **least: int) -> None:
    """Raise a UserError if an option of ``task`` is less than its ``least`` value; None is allowed."""
    for name, smallest in least.items():
        value = getattr(task, name)
        if value is not None and value < smallest:
            raise UserError(f"task.{name}={value}: must be at least {smallest}. Raise it.")


def examine_baseline(run: Run, name: str, missing: str, examine: Step, check: Step, precise: bool = False) -> None:
    """Answer what is missing as the baseline, then conclude with ``examine``, which looks into the model.

    Args:
        run: the run of the study.
        name: of the experiment and its analysis.
        missing: what a report says if ``examine`` fails.
        examine: looks into the model; returns what to print.
        check: refuses cases that cannot be examined, before any weights load.
        precise: whether a model in 16 bits is refused.

    Raises:
        UserError: the benchmark has no margin, or the model cannot be used.
    """
    alone = study.baseline_only(check_margins(run))
    validated = validate(alone)
    check(validated)
    with study.open_study(alone, validated=validated) as work:
        if precise:
            from interp.tools.part_effects import check_precise

            check_precise(work.vlm)
        check_first_token(work.vlm, f"+exp={name}")
        work.answer_all()
        work.conclude([Analysis(name, missing, examine)])


def check_margins(run: Run) -> Run:
    """Return the run of a study that follows a margin; answers in words are generated under any protocol.

    Raises:
        UserError: the weights are not here to look into.
    """
    _ = run.weights
    return run if run.benchmark.kind == "yes_no" else replace(run, protocol="generate")


def check_first_token(vlm: Any, tool: str) -> None:
    """Check that a model's verdict is its first token, where a ``tool`` compares prompts token by token.

    Raises:
        UserError: it thinks first, and two thoughts differ in their tokens.
    """
    if getattr(vlm, "thinks", False):
        raise UserError(
            f"{tool} compares prompts at the token of the verdict, and {vlm.name} thinks first, by its chat template, "
            "and two thoughts differ; if the template can, switch thinking off: 'model.template={enable_thinking: "
            "false}'; task=attention works after a thought"
        )
