"""Plans of the bundled organism, in a process of their own; prints a line of JSON for each.

``python -m tests.experiments.planning.job <command> ...``: each command is the arguments of one, in one string.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

from experiments.planning.models import Asked
from experiments.planning.peak_memory import measured
from tests.experiments.compose import run_of

# They run forwards before the answer (two, one), search for it, or have a branch of another length beside it.
OTHER_ARMS = {"vista": "arms.vista.window=1", "agla": "", "opera": "", "icd": ""}
RATES = (1e12, 1e11, 1e-5)


def plan(command: str, gib: float = 24.0) -> dict[str, Any]:
    """What is measured for a command."""
    return asdict(measured(run_of(*command.split()), Asked(20, 48, 48), gib, RATES))


def longer() -> dict[str, Any]:
    """Answers of eight tokens added up from three, and done."""
    from experiments.planning import peak_memory

    arms = " ".join(f"+method@arms.{arm}={arm} {setting}" for arm, setting in OTHER_ARMS.items())
    command = f"method=vcd max_new_tokens=8 {arms}"
    added = plan(command)["outcomes"]
    peak_memory.PLANNED_TOKENS = 8
    return {"added": added, "done": plan(command)["outcomes"]}


if __name__ == "__main__":
    for one in sys.argv[1:]:
        print(json.dumps(longer() if one == "longer" else plan(one)), flush=True)
