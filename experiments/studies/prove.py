"""``task=prove``: does the model's layout hold, and which tools may be trusted on it? Asks no benchmark."""

import sys
from dataclasses import dataclass, field

from experiments.config import Run
from interp.errors import UserError


@dataclass(frozen=True)
class Prove:
    """The task: proves the model of ``run`` on two made-up pictures (``interp.proof``) and prints the proof.

    ``require`` are the tools that must work, all by default. Ends with exit code 1 where one of them is refused.
    """

    require: list[str] = field(default_factory=list)

    def __call__(self, run: Run) -> None:
        """Loads the model without the quick checks, proves it, and prints.

        Raises:
            UserError: an unknown tool in ``require``.
        """
        from interp.loading import load
        from interp.proof import TOOLS, prove

        if unknown := [name for name in self.require if name not in (*TOOLS, "thought")]:
            raise UserError(f"task.require={unknown[0]}; known tools: {', '.join(TOOLS)}, thought; choose among these")
        proof = prove(load(run.weights, check=False))
        print(proof)
        refused = [name for name in self.require or proof.tools if proof.tools.get(name, "no thought is expected")]
        if refused:
            print(f"refused: {', '.join(refused)}", file=sys.stderr)
            sys.exit(1)
