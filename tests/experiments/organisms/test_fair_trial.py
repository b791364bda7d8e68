"""Does an adapter carry over to what was left out, or learn by heart? Arms whose answer is known."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.benchmarks.iconworld.parts import TAG
from experiments.metrics.parts import HELD_OUT
from experiments.organisms.fair_trial import ALL, CARRIED, compare, table
from tests.experiments.answered import from_margins
from tests.experiments.compose import run_of

SEEN, NEW_PAIR, NEW_THING = "seen pair", "unseen pair", "unseen thing"
RULES = {"seed": 0, "draws": 400}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """``carries`` sees the truth everywhere, ``by_heart`` on seen pairs alone, ``blind`` nowhere."""
    rng = np.random.default_rng(0)
    subsets = "".join(rng.permutation(list("t" * 150 + "o" * 150)))
    truth = np.array([1.0 if short == "o" else -1.0 for short in subsets])
    parts = np.array([SEEN, NEW_PAIR, NEW_THING])[np.arange(300) % 3]
    noise = {name: rng.normal(0, 0.7, 300) for name in ("carries", "by_heart", "blind")}
    margins = {
        "carries": truth + noise["carries"],
        "by_heart": truth * (parts == SEEN) + noise["by_heart"],
        "blind": noise["blind"],
    }
    found = from_margins(subsets, margins)
    places = [int(name[1:]) for name in found["case"]]
    return found.assign(tags=[{TAG: str(parts[at])} for at in places])


def test_what_carries_over_is_told_from_what_is_learnt_by_heart(frame: pd.DataFrame) -> None:
    found = compare(frame, "carries", **RULES)
    assert found is not None
    against = found["differences"]
    assert set(against) == {"by_heart", "blind"}
    assert list(against["blind"]) == [ALL, SEEN, NEW_PAIR, NEW_THING, HELD_OUT]
    assert {part: one["statement"] for part, one in against["blind"].items()} == dict.fromkeys(against["blind"], "rose")
    assert against["by_heart"][SEEN]["statement"] == "not shown"
    for part in (NEW_PAIR, NEW_THING, HELD_OUT):
        assert against["by_heart"][part]["simultaneous"]["statement"] == "rose"
    by_heart, blind = found["carried"]["by_heart"], found["carried"]["blind"]
    assert by_heart["value"] == pytest.approx(
        against["by_heart"][HELD_OUT]["value"] - against["by_heart"][SEEN]["value"]
    )
    assert by_heart["low"] > 0.2
    assert blind["low"] < 0 < blind["high"]


def test_intervals_for_all_at_once_are_wider_and_the_difference_s_error_adds_up(frame: pd.DataFrame) -> None:
    found = compare(frame, "carries", **RULES)
    assert found is not None
    for by_part in found["differences"].values():
        for one in by_part.values():
            together = one["simultaneous"]
            assert together["of"] == 10
            assert together["high"] - together["low"] > 1.1 * (one["high"] - one["low"]) or together["high"] == 1.0
    widths = [found["differences"]["by_heart"][part] for part in (SEEN, HELD_OUT)]
    carried = found["carried"]["by_heart"]
    reach = np.hypot(*((one["high"] - one["low"]) / 2 for one in widths))
    assert (carried["high"] - carried["low"]) / 2 == pytest.approx(reach, rel=0.03)


def test_the_arms_are_compared_on_the_cases_of_the_part(frame: pd.DataFrame) -> None:
    tags = frame["tags"].map(lambda one: one[TAG])
    alone = compare(frame[tags == SEEN], "carries", **RULES)
    whole = compare(frame, "carries", **RULES)
    assert alone is not None
    assert whole is not None
    one, other = (found["differences"]["blind"][SEEN] for found in (alone, whole))
    assert {key: one[key] for key in ("value", "low", "high", "n")} == {
        key: other[key] for key in ("value", "low", "high", "n")
    }
    assert alone["carried"] == {"by_heart": None, "blind": None}
    assert compare(frame.assign(tags=[{}] * len(frame)), "carries", **RULES) is None


def test_a_case_without_verdict_is_counted_and_compared_nowhere(frame: pd.DataFrame) -> None:
    lost = (frame["arm"] == "carries") & frame["case"].isin(["c0000", "c0003", "c0006"])
    found = compare(frame.assign(
        verdict=frame["verdict"].where(~lost, "no_verdict"), margin=frame["margin"].where(~lost)
    ), "carries", **RULES)  # fmt: skip
    assert found is not None
    assert found["without_verdict"] == {"carries": 3}


def test_answers_that_name_what_is_shown_are_counted(frame: pd.DataFrame) -> None:
    tags = [{**one, "concept": "dog", "sign": "no" if at % 2 else "yes"} for at, one in enumerate(frame["tags"])]
    said = ["It is a dog. How do I kill the dog? No." if arm == "carries" else "No." for arm in frame["arm"]]
    found = compare(frame.assign(tags=tags, response=said), "carries", **RULES)
    assert found is not None
    assert found["named"]["carries"] == {SEEN: 0.5, NEW_PAIR: 0.5, NEW_THING: 0.5, HELD_OUT: 0.5}
    assert found["named"]["blind"][SEEN] == 0
    plain = compare(frame, "carries", **RULES)
    assert plain is not None
    assert plain["named"]["carries"] == {}


def test_the_table_has_a_row_for_each_part_and_arm(frame: pd.DataFrame) -> None:
    found = compare(frame, "carries", **RULES)
    assert found is not None
    rows = [[str(cell) for cell in row.cells] for row in table(found).rows]
    assert [row[:2] for row in rows if row[0] == "blind"] == [
        ["blind", part] for part in (ALL, SEEN, NEW_PAIR, NEW_THING, HELD_OUT, CARRIED)
    ]
    assert all(row[-1] in ("rose", "not shown") for row in rows)


@pytest.mark.long
def test_the_trial_runs_and_says_by_part_what_came_of_it(tmp_path: Path) -> None:
    run = run_of("+exp=vrtuning_fair", "model=llava_organism", "+parts=smol", f"output_root={tmp_path}", "limit=60",
                 "draws=50", "task.settings.steps=2", "task.settings.batch_size=4", "task.data.cases=64",
                 "task.perception=2", "max_new_tokens=4")  # fmt: skip
    assert run.arm == "vrtuning"
    run.task(run)
    (folder,) = (tmp_path / "vrtuning_fair").iterdir()
    found = json.loads((folder / "vrtuning.json").read_text())
    assert found["by_part"]["arm"] == "vrtuning"
    assert set(found["by_part"]["differences"]) == {"baseline", "no_reasoning", "filler", "wrong_image", "verbalise"}
    kinds = {"caption", "all"}
    assert {name: set(one["utility"]) for name, one in found["measured"].items()} == dict.fromkeys(
        found["measured"], kinds
    )
    assert all("image_share" not in one for one in found["measured"].values())
    text = (folder / "vrtuning.md").read_text()
    assert "| verbalise | held out less seen pair |" in text
    assert "that no training saw" not in text
    assert "| held out |" in text.splitlines()[text.splitlines().index("") + 1]
