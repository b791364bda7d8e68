"""``+exp=judge_xstest``: the judge card, how far each refusal judge agrees with XSTest's people. Loads no model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.benchmarks.xstest import SOURCE, given, read_completions
from experiments.config import Run
from experiments.evaluation.judge_agreement import measured, offline_judges, read_by
from experiments.runs.directory import open_run
from interp.errors import UserError

TITLE = "Judges against XSTest's human labels (refusal = full or partial)"
METHOD = (
    "The classifier judges each model's answers after training on the other models' alone, its settings also chosen on "
    "those alone; phrase lists and normalisation were fixed before any labelled answer was scored. 95% intervals: κ by "
    "bootstrap over prompts, sensitivity and specificity by Wilson."
)
ATTRIBUTION = f"Labels: XSTest (Röttger et al. 2024), CC BY 4.0, {SOURCE}"
HEAD = ("judge", "model", "n", "refused", "κ", "sensitivity", "specificity", "not judged")
SHORT_HEAD = ("judge", "model", "κ", "sensitivity", "specificity")
Row = tuple[str, ...]


@dataclass(frozen=True)
class JudgeCard:
    """The task. ``root`` holds XSTest's labelled completions; a refusal judge that is named is measured as well."""

    root: str | None = None

    def __call__(self, run: Run) -> None:
        """Writes judge_card.json and judge_card.md into a run directory, and prints the table."""
        completions = read_completions(given(self.root))
        judges = offline_judges(completions, seed=run.seed, draws=run.draws)
        if run.judge_named and run.judge.name not in judges:
            if run.judge.kind != "refusal":
                raise UserError(f"judge {run.judge.name} reads {run.judge.kind} answers, XSTest's labels are of "
                                "refusals; choose a refusal judge or none")  # fmt: skip
            readings = read_by(run.judge, completions)
            judges[run.judge.name] = measured(completions, readings, seed=run.seed, draws=run.draws)
        card = {"title": TITLE, "method": METHOD, "attribution": ATTRIBUTION, "draws": run.draws, "seed": run.seed,
                "judges": judges}  # fmt: skip
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            store.write_json("judge_card.json", card)
            (store.path / "judge_card.md").write_text(markdown(card), encoding="utf-8")
            store.finish()
        console = Console()
        console.print(terminal(card))
        for line in (METHOD, ATTRIBUTION, f"judge card: {store.path / 'judge_card.md'}"):
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def rows(card: Mapping[str, Any]) -> Iterator[Row]:
    """The table's lines: every judge on every model, on all answers together, and the mean κ of its models."""
    for judge, found in card["judges"].items():
        for model, one in [*found["models"].items(), ("all answers", found["pooled"])]:
            numbers = [_number(one[name], one[f"{name}_interval"]) for name in ("kappa", "sensitivity", "specificity")]
            yield judge, model, str(one["n"]), str(one["refused"]), *numbers, str(one.get("judge_failed", ""))
        mean = _number(found["mean_kappa"], found["mean_kappa_interval"])
        yield judge, "mean of the models", "", "", mean, "", "", ""


def markdown(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    lines = [f"# {card['title']}", "", _line(HEAD), _line(("---",) * len(HEAD)), *map(_line, rows(card))]
    return "\n".join([*lines, "", card["method"], "", card["attribution"], ""])


def terminal(card: Mapping[str, Any]) -> Table:
    """The card as a table for the terminal."""
    table = Table(title=TITLE)
    for name in SHORT_HEAD:
        table.add_column(name, justify="left" if name in ("judge", "model") else "right")
    for row in rows(card):
        cells = dict(zip(HEAD, row, strict=True))
        # Intervals of the two shares are in the file: the table has to fit into 80 columns.
        table.add_row(*(cells[name] if name == "κ" else cells[name].partition(" [")[0] for name in SHORT_HEAD))
    return table


def _line(cells: Row) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return "not defined"
    return f"{value:.3f}" if interval is None else f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"
