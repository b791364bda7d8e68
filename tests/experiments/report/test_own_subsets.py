"""Subsets of a table of one's own keep their own names, in the table and in a figure."""

from pathlib import Path

import pytest

from experiments.report.build import build
from experiments.report.subsets_figure import own_rates
from tests.experiments.synthetic_run import ARMS, metrics_of, predictions, write_run

KITCHEN, STREET = "kitchen $x^2$ & <b>knives</b>", "Straße"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose cases alternate between two subsets of the user's; the first has twice as many."""
    records = predictions()
    for record in records:
        number = int(record["case"].partition("/")[2])
        record["subset"] = record["subset"].replace("attack", "typical")
        record["tags"] = {"subset": STREET if number // 4 % 3 == 2 else KITCHEN}
    return write_run(tmp_path_factory.mktemp("run"), records)


def test_every_arm_has_its_rates_by_own_name(run: Path) -> None:
    metrics = metrics_of(run)
    rates = own_rates(metrics)
    assert list(dict.fromkeys(rate.subset for rate in rates)) == [KITCHEN, STREET]  # the larger first
    assert {rate.arm for rate in rates} == set(ARMS)
    cell = metrics["arms"]["vcd"]["by_tag"]["subset"][STREET]["over_safety"]
    (found,) = [r for r in rates if (r.arm, r.subset) == ("vcd", STREET) and "safe cases called safe" in r.panel
                and "unsafe" not in r.panel]  # fmt: skip
    assert (found.rate, found.interval, found.n) == (cell["accuracy"], tuple(cell["interval"]), cell["n"])


@pytest.mark.long
def test_the_report_has_it_under_the_table(run: Path) -> None:
    html = build(run).read_text(encoding="utf-8")
    assert (run / "figures" / "by_own_subset.svg").is_file()
    assert 'data-name="by_own_subset"' in html
    assert html.index('class="words">subset</th>') < html.index('data-name="by_own_subset"')
    assert "<b>knives</b>" not in html
