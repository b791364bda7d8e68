"""``task=prove``: does the model's layout hold, and which tools may be trusted on it? Asks no benchmark.

For a model behind an endpoint, with ``task.twin``: does it get the same prompts as the same model here, and give the
same answers?
"""

import sys
from dataclasses import dataclass, field

from experiments.config import Run
from interp.errors import UserError


@dataclass(frozen=True)
class Prove:
    """The task: check the model of ``run`` on two made-up pictures (``interp.selfcheck``) and print the result.

    ``require`` are the tools that must work, all by default. If one of them is refused, the exit code is 1.

    With ``twin`` (a folder, hub id or bundled model, in the number format ``twin_dtype``) the model of ``run`` is
    behind an endpoint. Both answer thirty made-up prompts (``experiments.api.parity``). If they differ, the exit code
    is 1.
    """

    require: list[str] = field(default_factory=list)
    twin: str | None = None
    twin_dtype: str = "auto"

    def __call__(self, run: Run) -> None:
        """Load the model without the quick checks, check it, and print; or compare both sides and print.

        Raises:
            UserError: an unknown tool in ``require``; a twin of a model whose weights are here, or none of one behind
                an endpoint.
        """
        from interp.loading import load
        from interp.selfcheck import TOOLS, prove

        if unknown := [name for name in self.require if name not in (*TOOLS, "thought")]:
            raise UserError(f"task.require={unknown[0]}; known tools: {', '.join(TOOLS)}, thought; choose among these")
        if self.twin is not None or run.endpoint is not None:
            self._compare(run)
            return
        result = prove(load(run.weights, check=False))
        print(result)
        refused = [name for name in self.require or result.tools if result.tools.get(name, "no thought is expected")]
        if refused:
            print(f"refused: {', '.join(refused)}", file=sys.stderr)
            sys.exit(1)

    def _compare(self, run: Run) -> None:
        from experiments.api.parity import both_sides, parity

        compared = parity(*both_sides(run.endpoint, run.model.name, self.twin, self.twin_dtype))
        print(compared.text)
        if not compared.same:
            sys.exit(1)
