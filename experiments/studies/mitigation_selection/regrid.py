"""``task=regrid``: an arm of a finished run with other weights and cutoffs, scored on the logits that the run kept.

No model is loaded. Margins, and with them AUROC, are exact for every case. An answer is known as far as some recorded
answer of the case goes the same way; where it does not, or a token that was not kept may be chosen, the case counts as
not replayable in that setting, and enters no rate of it. The whole grid is shown, with intervals that hold for all its
settings at once. No setting is named best: these are the cases that it would be judged by.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from experiments.config import Run, digest
from experiments.config.nodes import made
from experiments.evaluation.answer import LOGITS
from experiments.metrics.findings import plain
from experiments.report.table import Column, Table, terminal
from experiments.runs import records
from experiments.runs.resumption import open_run
from experiments.runs.saved_run import SavedRun, read_run
from experiments.studies.mitigation_selection.candidates import check_grid, combinations
from experiments.studies.mitigation_selection.grid import BASELINE, COLUMNS, LEGEND, RATES, GridAnswers, row
from experiments.types import SCORED_SUBSETS, Status
from interp.errors import UserError
from mitigation import class_named
from mitigation.branches import BranchMethod

LOST = "not replayable"
NO_ESTIMATE = (
    "Their answers leave every recorded one, mostly because the verdict changes, so that the rates of the others are "
    "no estimate of all. AUROC is exact. Ask with protocol=score, or the setting itself, to know them."
)
Record = dict[str, Any]


@dataclass(frozen=True)
class Regrid:
    """The task: every combination of ``grid`` (a list of values by setting) of ``arm`` in the run ``run``.

    ``arm`` None is the arm under study.
    """

    run: str | None = None
    arm: str | None = None
    grid: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the grid.

        Raises:
            UserError: it is empty, or a setting has no values or one twice.
        """
        if not self.grid:
            raise UserError("the grid is empty: give task=regrid the settings to try, as method.alpha=[0.5,1,2,4]")
        check_grid(self.grid, "method")

    def __call__(self, run: Run) -> Path:
        """Scores, prints and writes ``regrid.json`` into a run directory of its own, which it returns.

        Raises:
            UserError: no finished yes/no run, an arm without kept logits, or a setting that decides what is asked.
        """
        if self.run is None:
            raise UserError("run=<dir>: task=regrid needs the directory of a run with task.keep_logits=true; give one")
        saved = read_run(Path(self.run))
        if not saved.environment.get("finished") or saved.metrics.get("kind") == "refusal":
            raise UserError(f"run={self.run} is no finished run of a yes/no benchmark; give the directory of one")
        arm = self.arm or str(saved.metrics["study"])
        method = _method(saved, arm)
        if wrong := [name for name in self.grid if name not in method.score_settings]:
            raise UserError(
                f"method.{wrong[0]}: decides what is asked, or is no setting of {type(method).__name__}; kept logits "
                f"can be scored with other values of {', '.join(method.score_settings)}"
            )
        kept = _kept_answers(saved, arm, method)
        studied, baseline = (
            [record for record in saved.predictions if record["arm"] == one and record["subset"] in SCORED_SUBSETS]
            for one in (arm, BASELINE)
        )
        if not any(record["case"] in kept for record in studied):
            raise UserError(
                f"no logits of arm {arm} were kept in {saved.directory}; ask again with task.keep_logits=true"
                " (branch=paired and branch=lazy keep none)"
            )
        if not baseline:
            raise UserError(f"{saved.directory} has no baseline to compare with; give a run that has one")
        grid = {_name(setting): _method(saved, arm, setting) for setting in combinations(self.grid)}
        lines = {BASELINE: [record | {"replayed": True} for record in baseline]}
        lines |= {name: [_replayed(one, own, kept) for own in studied] for name, one in grid.items()}
        result = evaluate(lines, seed=run.seed, draws=run.draws)
        result = {"kind": "regrid", "run": str(saved.directory), "arm": arm, "method": repr(method), **result}
        console = Console()
        console.print(terminal(table(result)))
        for sentence in sentences(result):
            console.print(sentence, highlight=False, soft_wrap=True, markup=False)
        name = f"{saved.environment.get('config', {}).get('name', 'run')}_regrid"
        identity = digest([str(saved.directory.resolve()), arm, self.grid])
        with open_run(run.output_root, name, run.config, identity, fresh=run.fresh) as store:
            store.write_json("regrid.json", result)
            store.finish()
            return store.path


def _name(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in setting.items())


def _method(saved: SavedRun, arm: str, setting: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """The arm's method with this setting, of a class of this package: a run's folder is not trusted to name others.

    Raises:
        UserError: there is no such arm, or its scores are not those of branches alone.
    """
    nodes = (saved.environment.get("config") or {}).get("arms") or {}
    if arm not in nodes:
        raise UserError(f"the run has no arm {arm!r}; it has {', '.join(nodes) or 'none'}; give one: task.arm=…")
    if not _able(nodes[arm]):
        able = [name for name in nodes if name != arm and _able(nodes[name])]
        raise UserError(
            f"arm {arm} is no contrast whose formula can be scored again; arms that are: {', '.join(able) or 'none'}; "
            "give one of them (task.arm=…), or ask the model with the setting itself"
        )
    return made({**nodes[arm], **setting}, "method")


def _able(node: Any) -> bool:
    if not isinstance(node, Mapping) or node.get("shift") or any(isinstance(one, Mapping) for one in node.values()):
        return False
    kind = class_named(str(node.get("_target_")))
    return issubclass(kind, BranchMethod) and bool(kind.score_settings)


def _kept_answers(saved: SavedRun, arm: str, method: Any) -> dict[str, list[Record]]:
    """By case, what was recorded of the arm and of others with the same branches, each with its kept logits.

    Raises:
        UserError: a line of the logits cannot be read.
    """
    nodes, scored_by = (
        saved.environment["config"]["arms"],
        {name: getattr(method, name) for name in method.score_settings},
    )
    alike = [arm]
    for other, node in nodes.items():
        same_class = other != arm and _able(node) and node["_target_"] == nodes[arm]["_target_"]
        if same_class and dataclasses.replace(_method(saved, other), **scored_by) == method:
            alike.append(other)
    file, logits = saved.directory / LOGITS, {}
    for number, line in records.parsed(file.read_bytes().split(b"\n") if file.is_file() else ()):
        if not isinstance(line, dict):
            raise UserError(f"{file}, line {number} cannot be read; ask again with task.keep_logits=true fresh=true")
        logits[line["case"], line["arm"]] = line
    found: dict[str, list[Record]] = {}
    for record in saved.predictions:
        line = logits.get((record["case"], record["arm"]), {})
        if record["arm"] in alike and record.get("settings") == line.get("settings", ""):
            found.setdefault(record["case"], []).append(record | line)
    return found


def evaluate(found: Mapping[str, Sequence[Record]], *, seed: int, draws: int) -> dict[str, Any]:
    """``baseline`` and ``points``, one for each setting: rates, AUROC, differences, and how many are not replayable.

    ``found`` are the records of the baseline and of every setting.
    """
    grid = [name for name in found if name != BASELINE]
    lines = [line | {"arm": name} for name, own in found.items() for line in own]
    signs = [line | _by_sign(line["margin"]) for line in lines if line.get("margin") is not None]
    texts = GridAnswers.of([line for line in lines if line["replayed"]], seed=seed, draws=draws)
    ranks = GridAnswers.of(signs, seed=seed, draws=draws)
    rated, ranked = texts.against_baseline(grid, "overall"), ranks.against_baseline(grid, "auroc")

    def values(name: str) -> dict[str, Any]:
        own = texts.values(name)
        return {rate: own[rate] for rate in (*RATES, "n")} | {"auroc": ranks.values(name)["auroc"]}

    points = []
    for name in grid:
        delta = {"overall": rated.get(name, {}).get("overall"), "auroc": ranked.get(name, {}).get("auroc")}
        lost = sum(not line["replayed"] for line in found[name])
        points.append({"name": name, **values(name), "delta": delta, "not_replayable": lost, "of": len(found[name])})
    method = {"seed": seed, "draws": draws, "settings": len(grid)}
    return plain({"baseline": values(BASELINE), "points": points, "method": method})


def _replayed(method: Any, record: Record, kept: Mapping[str, Sequence[Record]]) -> Record:
    """The record under another setting; ``replayed`` is whether what is answered is known."""
    from mitigation.kept_logits import replayed

    if (answers := kept.get(record["case"])) is None:  # what could not be asked has no answer in any setting
        return record | {"margin": None, "replayed": Status(record["status"]).excluded}
    again = replayed(method, answers)
    new = record | {"margin": again.margin, "replayed": True}
    if record.get("protocol") == "score":
        return new | _by_sign(again.margin)
    same = next((own for own in answers if tuple(own["tokens"]) == again.tokens), None)
    return new | ({"replayed": False} if same is None else {"verdict": same["verdict"]})


def _by_sign(margin: float) -> dict[str, str]:
    return {"verdict": "yes" if margin > 0 else "no", "status": "answered"}


def table(result: Mapping[str, Any]) -> Table:
    """One row for each setting, the baseline first; in the order of the grid, none of them marked."""
    rows = [row(BASELINE, result["baseline"], {})]
    for point in result["points"]:
        rows.append(row(point["name"], point, point["delta"]) | {LOST: _lost(point)})
    columns = [*COLUMNS, Column(LOST, short="not re-\nplayable")]
    legend = f"{LEGEND} Rates are of the answers that are known."
    return Table.of(f"{result['arm']}, from kept logits", rows, columns=columns, legend=legend)


def sentences(result: Mapping[str, Any]) -> list[str]:
    """What is printed below the table."""
    lost = [f"{point['name']}: {LOST}: {_lost(point)}." for point in result["points"] if point["not_replayable"]]
    none = "No setting is named best: these are the cases that it would be judged by."
    return [*lost, *([NO_ESTIMATE] if lost else []), none]


def _lost(point: Mapping[str, Any]) -> str:
    return f"{point['not_replayable']} of {point['of']}"
