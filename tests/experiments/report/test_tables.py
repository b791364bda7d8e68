"""One table, every form of it."""

import csv
import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from experiments.report.tables import by_arm, cell_text, csv_text, in_terminal, latex, lines_of, markdown, pivot, table
from experiments.runs.results_table import Results, Row, row

ROWS = [
    row("accuracy", arm="vcd_with_a_long_name", value=0.81, low=0.78, high=0.84, n=40, clusters=20),
    row("accuracy", arm="a|b & c", value=0.79, low=0.7, high=0.88, n=40, clusters=20, bound_low=0.1, bound_high=0.9),
    row("accuracy", arm="a|b & c", against="base", value=-0.0125, low=-0.03, high=0.005, claim="inconclusive"),
    row("auroc", arm="a|b & c", against="base", value=0.1, low=0.05, high=0.15, claim="higher"),
]
COLUMNS = {"accuracy": {"quantity": "accuracy"}, "Δ": {"quantity": "accuracy", "against": "base"},
           "AUROC Δ": {"quantity": "auroc", "against": "base"}, "nobody has": {"quantity": "d_prime"}}  # fmt: skip
TABLE = by_arm(Results(ROWS), COLUMNS, ["vcd_with_a_long_name", "a|b & c"], title="Arms", marked="a|b & c")


def printed(frame: object, *, width: int = 80, **options: object) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(in_terminal(frame, **options))  # type: ignore[arg-type]
    return console.export_text()


def test_fractions_are_percent_and_plain_numbers_are_not() -> None:
    assert list(map(str, map(cell_text, ROWS))) == [
        "81.0 [78–84]", "79.0 [70–88] {10.0–90.0}", "−1.2 [−3.0, +0.5]", "+0.100 [+0.050, +0.150]",
    ]  # fmt: skip
    assert str(cell_text(row("verdict", arm="a", value=12))) == "12"
    assert str(cell_text(row("accuracy", arm="a", value=None))) == "n/a"
    few = row("accuracy", arm="a", value=0.5, n=4, clusters=2)
    assert str(cell_text(few)) == "50.0 [too few cases]"
    assert [str(cell_text(one, sign=True))[0] for one in ROWS[2:]] == ["?", "▲"]


def test_markdown_escapes_what_would_end_a_cell() -> None:
    head, rule, first, second = markdown(TABLE).splitlines()
    assert head == "| arm | accuracy | Δ | AUROC Δ |"
    assert rule == "| --- | ---: | ---: | ---: |"
    assert first == "| vcd_with_a_long_name | 81.0 [78–84] |  |  |"
    assert second == r"| a\|b & c | 79.0 [70–88] {10.0–90.0} | −1.2 [−3.0, +0.5] | +0.100 [+0.050, +0.150] |"


def test_csv_can_be_read_again_and_holds_no_formula() -> None:
    rows = list(csv.reader(io.StringIO(csv_text(TABLE))))
    assert rows[0] == ["arm", "accuracy", "Δ", "AUROC Δ"]
    assert rows[2][3] == "'+0.100 [+0.050, +0.150]"
    assert csv_text(TABLE).startswith('"arm"')


def test_latex_escapes_its_own_signs_and_ours() -> None:
    lines = latex(TABLE).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrr}"
    assert r"arm & accuracy & $\Delta$ & AUROC $\Delta$ \\" in lines
    assert r"vcd\_with\_a\_long\_name & 81.0 [78--84] &  &  \\" in lines
    assert lines[5].startswith(r"a|b \& c & 79.0 [70--88] \{10.0--90.0\} & $-$1.2 [$-$3.0, +0.5]")


def test_latex_takes_no_cell_for_a_command_or_an_argument() -> None:
    hostile = table([{"a_b": "[2mm] \\input{x}", "c": "~^<▲ rose\nfast>"}, {"a_b": "*", "c": "50%"}])
    lines = latex(hostile).splitlines()
    assert lines[2] == r"a\_b & c \\"
    sign = r"\textasciitilde{}\textasciicircum{}\textless{}$\uparrow$ rose fast\textgreater{}"
    assert lines[4:6] == [rf"{{}}[2mm] \textbackslash{{}}input\{{x\}} & {sign} \\", r"{}* & 50\% \\"]


@given(st.text(alphabet="\\{}%$#_&~^[]*|<>\n\r=+-@\"'ab", max_size=12))
def test_no_text_ends_its_cell(text: str) -> None:
    frame = table([{"a": text, "b": "x"}])
    (_, line) = csv.reader(io.StringIO(csv_text(frame), newline=""))
    assert line[0].lstrip("'") == text.lstrip("'")
    assert not re.match(r"[=+\-@]", line[0])
    body = latex(frame).splitlines()[4]
    assert len(re.findall(r"(?<!\\)&", re.sub(r"\\\\$", "", body))) == 1
    assert not re.search(r"(?<!\\)[%#]", body)
    assert len(re.findall(r"(?<!\\)\|", markdown(frame).splitlines()[2])) == 3


def test_markup_in_a_cell_is_text() -> None:
    assert "[red]vcd" in printed(table([{"arm": "[red]vcd"}], title="[bold]Arms"))


def test_a_pivot_has_the_order_of_its_rows_and_keeps_numbers() -> None:
    rows = [row("probe", arm=arm, group=f"layer={at}", value=at / 10) for at in (2, 0) for arm in ("b", "a")]
    frame = pivot(rows, {"layer": lambda each: each.group.partition("=")[2]}, "arm", title="Probe")
    assert list(frame.columns) == ["layer", "b", "a"]
    assert frame["layer"].tolist() == ["2", "0"]
    assert all(isinstance(cell, Row) for cell in frame["a"])
    assert [cells[1].value for _, cells in lines_of(frame)] == ["20.0", "0.0"]
    assert [marked for marked, _ in lines_of(TABLE)] == [False, True]
