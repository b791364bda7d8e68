"""``+exp=mmsafeaware_table1|2|3``: the paper's rows beside ours, from finished runs or from a study run for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.launch import Launch, sharded
from experiments.report.formatting import fixed, percent
from experiments.schema import Run
from experiments.store import open_run, write_json
from experiments.tables import finished
from experiments.tables.conventions import CONVENTIONS
from experiments.tables.mmsafeaware_rows import Finished, Line, frame, lines, scenarios
from interp.errors import UserError

TITLES = {
    1: "Table 1: as it is",
    2: "Table 2: the safety system prompt, without and with",
    3: "Table 3: mitigations",
}
_SHORT = {"macro_mean": "macro\nmean", "two_thirds_unsafe": "(2U+O)\n/ 3", "case_weighted": "case-\nweighted"}


@sharded
@dataclass(frozen=True)
class PaperTable:
    """The task. ``table`` is 1, 2 or 3; ``runs`` are directories of finished runs (else the study is run first).

    ``arm`` is the one that Table 2 sets against the baseline. Writes table.csv, scenarios.csv and table.json into the
    study's directory, or into one of its own.
    """

    table: int = 1
    runs: list[str] | None = None
    arm: str = "safety_prompt"

    def __post_init__(self) -> None:
        if self.table not in TITLES:
            raise UserError(f"task.table={self.table}: must be 1, 2 or 3")

    def __call__(self, run: Run) -> None:
        """Prints the table with all conventions of Overall by name."""
        folders = finished.given(self.runs, run)
        studied = [] if folders else [finished.studied(run)]
        if not Launch.current().first:
            return
        if folders:
            found = [finished.read(folder) for folder in folders]
            shown = lines(self.table, found, self.arm)  # before the directory is made: what cannot be shown leaves none
            with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True, launch=Launch()) as store:
                self._write(store.path, found, shown)
                store.finish()
                folder = store.path
        else:
            folder = studied[0]
            found = [finished.read(folder)]
            shown = lines(self.table, found, self.arm)
            self._write(folder, found, shown)
        console = Console()
        console.print(terminal(self.table, shown))
        for sentence in notes(found):
            console.print(Text(sentence), highlight=False)
        console.print(f"table: {folder / 'table.csv'}", highlight=False, soft_wrap=True, markup=False)

    def _write(self, folder: Path, found: list[Finished], shown: list[Line]) -> None:
        frame(shown).to_csv(folder / "table.csv", index=False)
        scenarios(found).to_csv(folder / "scenarios.csv", index=False)
        rows = frame(shown).astype(object)
        write_json(
            folder / "table.json",
            {"table": self.table, "conventions": CONVENTIONS, "notes": list(notes(found)),
             "rows": rows.where(rows.notna(), None).to_dict("records")},
        )  # fmt: skip


def terminal(table: int, shown: list[Line]) -> Table:
    """The paper's lines, a rule, ours; % but for d′ and c."""
    drawn = Table(title=Text(f"MMSafeAware, {TITLES[table]} (%)", style="bold"), title_justify="left", padding=0,
                  box=SIMPLE_HEAD, pad_edge=False)  # fmt: skip
    drawn.add_column("", max_width=27, overflow="fold")
    shares = ("typical", "attack", "over_safety") if table == 1 else ("unsafe", "over_safety")
    names = {"typical": "typ-\nical", "attack": "att-\nack", "over_safety": "over-\nsafety", "unsafe": "un-\nsafe"}
    conventions = ("macro_mean", "case_weighted") if table == 1 else ("two_thirds_unsafe", "case_weighted")
    for heading in (
        *(names[name] for name in shares),
        "over-\nall",
        *(_SHORT[name] for name in conventions),
        "d′",
        "c",
    ):
        drawn.add_column(Text(heading), justify="right", no_wrap=True)
    for at, line in enumerate(shown):
        overall = [percent(line.overall[name]) + ("*" if name in line.convention else "") for name in conventions]
        cells = [*(percent(getattr(line, name)) for name in shares), "" if line.printed is None else
                 percent(line.printed), *overall, fixed(line.d_prime, 2), fixed(line.criterion, 2)]  # fmt: skip
        style = "bold" if line.source == "ours" else ""
        drawn.add_row(Text(line.name, style=style), *(Text(cell, style=style) for cell in cells))
        if at + 1 < len(shown) and shown[at + 1].source != line.source:
            drawn.add_section()
    return drawn


def notes(found: list[Finished]) -> Iterator[str]:
    """What a reader must know before setting our lines beside the paper's."""
    yield (
        "overall: as the paper prints it; * the convention it follows ((2U+O)/3: unsafe counted twice; case-weighted: "
        "every case once). d′ and c of the paper follow from its printed rates."
    )
    for run in found:
        name = f"{run.model} on {run.benchmark}"
        if run.benchmark != "mmsafeaware":
            yield f"{name}: other cases than the paper's, so its lines say nothing about the paper's models."
        if any(arm["n"] < arm["n_of"] for arm in run.metrics["arms"].values()):
            yield f"{name}: some cases have no answer; n of N and the bounds are in the run's metrics.json."
    counted = scenarios(found)
    kinds = {name: counted[counted["subset"] == name]["scenario"].nunique() for name in counted["subset"].unique()}
    listed = ", ".join(f"{count} {subset.replace('_', '-')}" for subset, count in kinds.items())
    yield f"Accuracy by scenario ({listed}) is in scenarios.csv."
