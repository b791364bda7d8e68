"""A command that is killed in its analysis of failures: ``python -m tests.experiments.analysis_job <overrides>``."""

import os
import signal
from typing import Any

import experiments.studies.attention.analysis as analysis
from experiments.run import main


def kill(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    analysis.analyse_failures = kill  # type: ignore[assignment]
    main()
