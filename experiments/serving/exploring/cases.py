"""The cases that the page can open: of the benchmark, and of a finished run with its answers.

A run keeps only small thumbnails. So its cases are asked only if benchmark and model here are the run's.
Imports no torch, and pandas only when cases are asked for: the page is there first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.config import Run
from experiments.report.saved_run import SavedRun, read_run
from experiments.types import Loaded, Sample
from interp.errors import UserError

EXAMPLE = "test-plain-073-crush-safe"  # of IconWorld: the cockroach of the README


@dataclass
class Cases:
    """Cases of the command line's benchmark and, where ``folder`` is given, of the run in it."""

    run: Run
    folder: Path | None = None
    saved: SavedRun | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.saved = None if self.folder is None else read_run(self.folder)

    @cached_property
    def _loaded(self) -> Loaded | UserError:
        from experiments.evaluation.cases import load_cases

        try:
            return load_cases(self.run, Console(quiet=True))
        except UserError as error:
            return error

    @cached_property
    def _by_id(self) -> dict[str, Sample]:
        return (
            {}
            if isinstance(self._loaded, UserError)
            else {
                sample.id: sample
                for sample in self._loaded.samples
                if not sample.turns  # the page shows one picture
            }
        )

    def sample(self, case: str) -> Sample:
        """Return a case of the benchmark.

        Raises:
            UserError: there is none of this id, or the benchmark cannot be loaded.
        """
        if case in self._by_id:
            return self._by_id[case]
        why = f" ({self._loaded})" if isinstance(self._loaded, UserError) else ""
        raise UserError(f"benchmark {self.run.benchmark.name} has no case {case[:80]!r} here{why}; choose another")

    def first(self, case: str | None = None) -> str:
        """Return the id of the case that the page opens on: ``case``, a failure of the run, or an example; "" for none.

        Raises:
            UserError: there is no such case.
        """
        if case is not None:
            self.sample(case)
            return case
        if self.saved is not None:
            from experiments.report.cases import correct

            records = [record for record in self.saved.predictions if record["arm"] == self._reference()]
            wrong = [record for record in records if correct(record) is False]
            over = [record for record in wrong if record["gold"] in ("yes", "comply")]
            return str(next(iter([*over, *wrong, *records]))["case"])
        if EXAMPLE in self._by_id:
            return EXAMPLE
        return next((sample.id for sample in self._by_id.values() if sample.image is not None), "")

    def listed(self) -> dict[str, Any]:
        """Return the run's cases and answers, as in the report's page, and the studies' additions to the report.

        Raises:
            UserError: no run was given.
        """
        if self.saved is None:
            raise UserError("no run was given; start with run=<dir>, the folder of a finished run")
        from experiments.report.cases import payload

        studied = str(self.saved.metrics["study"])
        return payload(self.saved, studied=studied, reference=self._reference(), attention=None)

    @property
    def nodes(self) -> Mapping[str, Any]:
        """Return the run's arms as in its configuration, which is untrusted."""
        arms = {} if self.saved is None else (self.saved.environment.get("config") or {}).get("arms")
        return arms if isinstance(arms, dict) else {}

    def checked(self, vlm: Any) -> Any:
        """Return the model, if the run's cases can be asked of it here.

        Raises:
            UserError: it is another model or benchmark than the run's.
        """
        if self.saved is None:
            return vlm
        model, benchmark = (self.saved.environment.get(name) or {} for name in ("model", "benchmark"))
        if other := vlm.other_than(model):
            raise UserError(
                f"This run is of {model.get('name')}, which differs from {vlm.name} here in {other}; name the run's "
                "model on the command line"
            )
        if isinstance(self._loaded, UserError):
            raise self._loaded
        if benchmark.get("manifest") != self._loaded.manifest:
            raise UserError(
                f"This run is on {benchmark.get('name')} ({str(benchmark.get('manifest'))[:12]}), and the benchmark "
                f"here is {self.run.benchmark.name} ({self._loaded.manifest[:12]}); name the run's benchmark on the "
                "command line"
            )
        return vlm

    def _reference(self) -> str:
        assert self.saved is not None
        return str(self.saved.metrics["baseline"] or self.saved.metrics["study"])
