"""The answers in a log of Inspect (inspect_ai), read by its own API. Imports neither it nor torch at the top."""

from pathlib import Path
from typing import Any

from interp.errors import UserError


def read_answers(path: Path) -> list[dict[str, Any]]:
    """Return id and response of each sample of a log; the response is None if the sample ended in an error.

    Raises:
        UserError: inspect_ai is not installed, the file is no log, or a sample was asked several times.
    """
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise UserError(
            "logs of Inspect need inspect_ai, which is not installed; in the clone, type pip install '.[inspect]' in "
            "an environment of its own, without constraints.txt"
        ) from None
    try:
        log = read_eval_log(str(path))
    except Exception as error:  # whatever a file that is no log provokes
        reason = (str(error).splitlines() or [""])[0][:120]
        raise UserError(
            f"{path}: is no log of Inspect ({type(error).__name__}: {reason}); give its .eval file"
        ) from None
    if any(sample.epoch != 1 for sample in log.samples or ()):
        raise UserError(f"{path}: has several epochs; an arm has one answer a case; run the evaluation with one epoch")
    return [
        {"id": str(sample.id), "response": None if sample.error is not None else sample.output.completion}
        for sample in log.samples or ()
    ]
