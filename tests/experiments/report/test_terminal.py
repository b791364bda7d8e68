"""What the terminal shows of a run: 80 columns, 25 lines, every number whole."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.report import arms
from experiments.report.saved_run import SavedRun, read_run
from experiments.report.tables import lines_of
from experiments.runs.results_table import Results
from tests.experiments.synthetic_run import ARMS, predictions, printed, write_run
from tests.snapshots import check

SNAPSHOTS = Path(__file__).with_name("snapshots")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return read_run(write_run(tmp_path_factory.mktemp("run"), predictions(240), thumbnails=()))


def test_the_end_of_a_study(run: SavedRun) -> None:
    text = printed(run)
    assert max(map(len, text.splitlines())) <= 80
    check(SNAPSHOTS / "terminal.txt", text)


def test_verbose_shows_every_table_whole(run: SavedRun) -> None:
    text = printed(run, verbose=True)
    assert max(map(len, printed(run, 200, verbose=True).splitlines())) <= 200
    assert "…\n" not in text  # rich's mark of a cut cell
    wide = " ".join(printed(run, 400, verbose=True).split())
    for frame in arms.all_tables(run.results, run.metrics).values():
        assert frame.attrs["title"] in wide
        for _, cells in lines_of(frame):
            assert all(part in wide for cell in cells for part in (cell.value, cell.interval))


@pytest.mark.parametrize("width", [80, 140])
def test_many_arms_and_notes_take_25_lines(tmp_path: Path, width: int) -> None:
    further = {f"[red]further_{number}": (0.8, -1.0) for number in range(12)}
    run = read_run(write_run(tmp_path, predictions(80, ARMS | further), thumbnails=(), draws=50))
    texts = [f"Note {number} of the design, which is long enough to take a line." for number in range(4)]
    run.metrics["not_applicable"] |= {f"arm {at}": text for at, text in enumerate(texts)}  # type: ignore[index]
    text = printed(run, width)
    assert len(text.splitlines()) <= 25 - 4  # the report and what to type next
    assert "more arms in the report)" in text
    assert "more notes in the report)" in text.replace("\n", " ")
    assert all(f"\n{arm} " in text for arm in ("baseline", "vcd", "calibrated_shift"))


def test_an_arm_that_the_command_names_is_shown(run: SavedRun) -> None:
    further = [row._replace(arm=f"further_{at:02}") for at in range(12) for row in run.results.select(arm="prompt")]
    many = replace(run, results=Results([*run.results, *further]))
    assert "further_11 " in printed(many, named={"further_11"})
    assert "further_11 " not in printed(many)
