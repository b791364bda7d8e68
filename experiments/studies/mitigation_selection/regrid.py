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
        kept = _KeptRun.of(saved, arm, method, tuple(self.grid))
        grid = {_name(setting): _method(saved, arm, setting) for setting in combinations(self.grid)}
        result = evaluate(kept, grid, seed=run.seed, draws=run.draws)
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


@dataclass(frozen=True)
class _KeptRun:
    """One arm's records, the baseline's, and by case the kept logits and recorded answers of the same branches."""

    baseline: Sequence[Record]
    studied: Sequence[Record]
    lines: Mapping[str, Sequence[tuple[Record, Mapping[str, Any]]]]  # by case: an arm's record, its kept logits

    @classmethod
    def of(cls, saved: SavedRun, arm: str, method: Any, names: Sequence[str]) -> "_KeptRun":
        """Those of a saved run.

        Raises:
            UserError: nothing was kept of the arm, or a name is none of a setting that only its scores read.
        """
        known_settings = method.score_settings
        if wrong := [name for name in names if name not in known_settings]:
            raise UserError(
                f"method.{wrong[0]}: decides what is asked, or is no setting of {type(method).__name__}; kept logits "
                f"can be scored with other values of {', '.join(known_settings)}"
            )
        nodes, scored_by = saved.environment["config"]["arms"], {name: getattr(method, name) for name in known_settings}
        alike = [arm]  # arms with the same branches have recorded further answers to them
        for other, node in nodes.items():
            same_class = other != arm and _able(node) and node["_target_"] == nodes[arm]["_target_"]
            if same_class and dataclasses.replace(_method(saved, other), **scored_by) == method:
                alike.append(other)
        known = {(record["case"], record["arm"]): record for record in saved.predictions}
        lines: dict[str, list[tuple[Record, Mapping[str, Any]]]] = {}
        for (case, name), line in _latest(saved.directory / LOGITS).items():
            record = known.get((case, name))
            if name in alike and record is not None and record.get("settings") == line.get("settings"):
                lines.setdefault(case, []).append((record, line))
        studied, baseline = (
            [record for record in saved.predictions if record["arm"] == one and record["subset"] in SCORED_SUBSETS]
            for one in (arm, BASELINE)
        )
        if not any(record["case"] in lines for record in studied):
            raise UserError(
                f"no logits of arm {arm} were kept in {saved.directory}; ask again with task.keep_logits=true"
                " (branch=paired and branch=lazy keep none)"
            )
        if not baseline:
            raise UserError(f"{saved.directory} has no baseline to compare with; give a run that has one")
        return cls(baseline, studied, lines)


def _latest(file: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The kept logits by case and arm; empty where there is no such file."""
    if not file.is_file():
        return {}
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for number, line in records.parsed(file.read_bytes().split(b"\n")):
        if not isinstance(line, dict):
            raise UserError(f"{file}, line {number} cannot be read; ask again with task.keep_logits=true fresh=true")
        found[line["case"], line["arm"]] = line
    return found


def evaluate(kept: _KeptRun, grid: Mapping[str, Any], *, seed: int, draws: int) -> dict[str, Any]:
    """``baseline`` and ``points``, one for each setting: rates, AUROC, differences, and how many are not replayable."""
    found = {BASELINE: [line | {"replayed": True} for line in kept.baseline]}
    found |= {name: _replayed(kept, method) for name, method in grid.items()}
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


def _replayed(kept: _KeptRun, method: Any) -> list[Record]:
    """The records under another setting; ``replayed`` is whether what is answered is known."""
    from mitigation.kept_logits import replayed

    found = []
    for record in kept.studied:
        lines = kept.lines.get(record["case"])
        if lines is None:  # what could not be asked has no answer in any setting
            found.append(record | {"margin": None, "replayed": Status(record["status"]).excluded})
            continue
        again = replayed(method, [line for _, line in lines])
        new = record | {"margin": again.margin, "replayed": True}
        if record.get("protocol") == "score":
            found.append(new | _by_sign(again.margin))
            continue
        same = next((own for own, line in lines if tuple(line["tokens"]) == again.tokens), None)
        found.append(new | ({"replayed": False} if same is None else {"verdict": same["verdict"]}))
    return found


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
