"""MOSSBench's leaderboard, to compare with a run on it: ``published.csv``, refusals in % as they are printed.

README of turningpoint-ai/MOSSBench, arXiv 2406.17806: columns of the GPT judge. The average of Claude 3 Opus is printed
as 55, a typo for 34.67, the mean of the row's three cells.
"""

import re
from pathlib import Path

import pandas as pd

_TABLE = pd.read_csv(Path(__file__).with_suffix(".csv"))
MOSSBENCH = _TABLE.groupby("model")["percent"].agg(tuple).to_dict()  # model → refusals by type, and their average
MOSSBENCH_HUMAN_DIFFERENCE = 4.9  # points a cell between the leaderboard's own human evaluation and its GPT judge
MOSSBENCH_ALIASES = {  # other names that MOSSBench itself gives a row's model
    "Gemini Advanced (web)": "Gemini Advanced",  # the folder of its responses; the row is of the web version too
    "IDEFICS-9b-Instruct": "IDEFICS-9b",  # the row in later versions of its README
}


def mossbench_row(model: str) -> tuple[float, ...] | None:
    """Return the leaderboard's row of a model, by the name of its results folder or its row; None without a row.

    Names are compared by their words, in any order: the folder is called "Gemini-Pro 1.5", the row "Gemini Pro
    1.5". "(web)" counts, because the web version of a model and its API have rows of their own.
    """
    rows = MOSSBENCH | {other: MOSSBENCH[name] for other, name in MOSSBENCH_ALIASES.items()}
    return next((row for name, row in rows.items() if _words(name) == _words(model)), None)


def _words(name: str) -> frozenset[str]:
    """Return words and whole numbers, so that "llava_1_5_7b" equals "LLaVA-1.5-7b"."""
    return frozenset(re.findall(r"[a-z]+|\d+", name.lower()))
