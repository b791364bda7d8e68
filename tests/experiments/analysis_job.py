"""A command whose analysis of failures breaks: ``python -m tests.experiments.analysis_job raise|kill <overrides>``.

``raise``: a RuntimeError from inside; ``kill``: the process gets SIGKILL there.
"""

import os
import signal
import sys
from typing import Any

import experiments.studies.attention.analysis as analysis
from experiments.run import main


def broken(*_: Any, **__: Any) -> None:
    if HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("Expected all tensors to be on the same device\nsecond line of many")


if __name__ == "__main__":
    HOW = sys.argv.pop(1)
    analysis.analyse_failures = broken  # type: ignore[assignment]
    main()
