"""``task=judge_validation``: how far refusal judges agree with people's labels of XSTest's and MSTS's answers."""

import json
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from experiments.config import Run
from experiments.report import judge_card
from experiments.report.tables import in_terminal, say, table
from experiments.runs.store import open_run
from experiments.studies.refusal_judges.agreement import annotators, by_language, judged_by, measured, offline_judges
from experiments.studies.refusal_judges.labelled import read_labelled
from interp.errors import UserError


@dataclass(frozen=True)
class JudgeCard:
    """The task. ``root`` names a clone of XSTest or MSTS, or both. It also measures a judge that the run names."""

    root: Any = None

    def __call__(self, run: Run) -> None:
        """Write judge_card.json into a run directory, and print its table.

        Raises:
            UserError: no labelled answers in ``root``, or the run's judge does not read refusals.
        """
        if run.judge_named and run.judge.kind != "refusal":
            raise UserError(f"judge {run.judge.name} reads {run.judge.kind} answers, and the labels are of refusals; "
                            "choose a refusal judge or none")  # fmt: skip
        rows, others = read_labelled(self.root)
        settings: dict[str, Any] = {"seed": run.seed, "draws": run.draws}
        with Console().status("Training the classifier without each team of models and fold of requests"):
            judges = offline_judges(rows, others, **settings)
        if run.judge_named and run.judge.name not in judges:
            scores = measured(rows, judged_by(run.judge, rows), **settings)
            judges[run.judge.name] = scores | by_language(run.judge, others, **settings)
        card = {"title": judge_card.TITLE, "method": judge_card.METHOD, "attribution": judge_card.ATTRIBUTION,
                **settings, "judges": judges, "annotators": annotators(rows, **settings)}  # fmt: skip
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            path = store.path / "judge_card.json"
            path.write_text(f"{_lines(card)}\n", encoding="utf-8")
            store.finish()
        tables = [in_terminal(table(rows, title=title)) for title, rows in judge_card.tables(card).items()]
        say(judge_card.TITLE, *tables, judge_card.METHOD, judge_card.ATTRIBUTION, f"judge card: {path}")


def _lines(value: Any, indent: str = " ") -> str:
    """Return JSON with one line for each object that holds no other object."""
    if not isinstance(value, dict) or not any(isinstance(part, dict) for part in value.values()):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    parts = (f"{indent}{json.dumps(name)}: {_lines(part, indent + ' ')}" for name, part in value.items())
    return "{\n" + ",\n".join(parts) + f"\n{indent[1:]}}}"
