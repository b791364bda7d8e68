"""``+exp=ablation_llava``: a study of arms without a direction, and over-caution and harmful compliance side by side.

In the run's directory, beside all that a study leaves: ``ablation.json`` and a section of the report. Arms that learn
do so on the development split; ``learned/`` holds the directions and the checkpoint with orthogonalised weights.
Importing this module loads neither torch nor transformers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import RenderableType

from experiments import study
from experiments.launch import sharded
from experiments.schema import Run
from experiments.store import open_run
from interp.errors import UserError


@sharded
@dataclass(frozen=True)
class Ablation:
    """The task. Answers are those of the run's arms.

    ``twins`` are pairs of arms that should answer alike (projection while running, weights): the largest difference of
    their margins is reported. ``controls`` are, for each ablation that is to be told in words, the arms that take out
    something else in the same way.
    """

    twins: list[list[str]] = field(default_factory=list)
    controls: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, run: Run) -> Path:
        """Evaluates, prints what came of it, and returns the run's directory."""
        self._check(run)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            folder = store.path
        # A second fresh start would leave the directory for another.
        study.run(replace(run, fresh=False), after=self._conclude)
        return folder

    def _conclude(self, folder: Path) -> Iterable[RenderableType]:
        from experiments.ablation.tables import conclude

        return conclude(folder, twins=self.twins, controls=self.controls)

    def _check(self, run: Run) -> None:
        """What no weights are needed to refuse."""
        named = [arm for group in (self.controls, *self.controls.values(), *self.twins) for arm in group]
        if unknown := [arm for arm in named if arm not in run.arms]:
            raise UserError(f"task names an arm {unknown[0]!r}; known: {', '.join(run.arms)}; mend twins or controls")
        if any(len(pair) != 2 for pair in self.twins):
            raise UserError(f"task.twins={self.twins}: must be pairs of arms")
        _ = run.weights  # what is looked into must be here
