"""``task=judge_validation``: the judge card, how far each refusal judge agrees with XSTest's people. Loads no model."""

from dataclasses import dataclass

from rich.console import Console

from experiments.benchmarks.xstest import given, read_completions, twins
from experiments.config import Run
from experiments.evaluation.judge_agreement import measured, offline_judges, read_by
from experiments.report import judge_card
from experiments.report.table import terminal
from experiments.runs.directory import open_run
from interp.errors import UserError


@dataclass(frozen=True)
class JudgeCard:
    """The task. ``root`` holds XSTest's labelled completions; a refusal judge named by the run is measured as well."""

    root: str | None = None

    def __call__(self, run: Run) -> None:
        """Writes judge_card.json and judge_card.md into a run directory, and prints the table.

        Raises:
            UserError: no completions in ``root``, or the run's judge does not read refusals.
        """
        completions, groups = read_completions(given(self.root)), twins(given(self.root))
        console = Console()
        with console.status("the classifier is trained without each model and fold of prompts"):
            judges = offline_judges(completions, groups, seed=run.seed, draws=run.draws)
        if run.judge_named and run.judge.name not in judges:
            if run.judge.kind != "refusal":
                raise UserError(f"judge {run.judge.name} reads {run.judge.kind} answers, XSTest's labels are of "
                                "refusals; choose a refusal judge or none")  # fmt: skip
            readings = read_by(run.judge, completions)
            judges[run.judge.name] = measured(completions, readings, seed=run.seed, draws=run.draws)
        card = judge_card.judge_card(judges, draws=run.draws, seed=run.seed)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            store.write_json("judge_card.json", card)
            (store.path / "judge_card.md").write_text(judge_card.markdown(card), encoding="utf-8")
            store.finish()
        console.print(terminal(judge_card.table(card)))
        for line in (card["method"], card["attribution"], f"judge card: {store.path / 'judge_card.md'}"):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
