"""One table, every form of it."""

import csv
import io

import pytest
from experiments.report.table import Cell, Column, Narrow, Table, csv_text, latex, markdown, terminal
from rich.console import Console

RECORDS = [
    {"arm": "vcd_with_a_long_name", "AUROC": Cell("0.81", "0.78–0.84"), "Δ": "+0.02"},
    {"arm": "a|b & c", "AUROC": Cell("0.79", "0.70–0.88", bounds="0.1–0.9"), "Δ": "−0.01"},
]
TABLE = Table.of("Arms", RECORDS, legend="AUROC: of the margin")


def printed(table: Table, *, stacked: bool = True, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(terminal(table, stacked=stacked))
    return console.export_text()


def test_records_survive_as_text_in_one_line() -> None:
    assert TABLE.records()[1] == {"arm": "a|b & c", "AUROC": "0.79 [0.70–0.88] {0.1–0.9}", "Δ": "−0.01"}
    assert Table.of("Arms", TABLE.records()).records() == TABLE.records()
    assert [column.align for column in TABLE.columns] == ["left", "right", "right"]


def test_markdown_escapes_what_would_end_a_cell() -> None:
    head, rule, first, second = markdown(TABLE).splitlines()
    assert head == "| arm | AUROC | Δ |"
    assert rule == "| --- | ---: | ---: |"
    assert first == "| vcd_with_a_long_name | 0.81 [0.78–0.84] | +0.02 |"
    assert second.startswith(r"| a\|b & c |")


def test_csv_can_be_read_again_and_holds_no_formula() -> None:
    rows = list(csv.reader(io.StringIO(csv_text(TABLE))))
    assert rows[0] == ["arm", "AUROC", "Δ"]
    assert rows[1] == ["vcd_with_a_long_name", "0.81 [0.78–0.84]", "'+0.02"]
    assert csv_text(TABLE).startswith('"arm"')


def test_latex_escapes_its_own_signs_and_ours() -> None:
    lines = latex(TABLE).splitlines()
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert r"arm & AUROC & $\Delta$ \\" in lines
    assert r"vcd\_with\_a\_long\_name & 0.81 [0.78--0.84] & +0.02 \\" in lines
    assert r"a|b \& c & 0.79 [0.70--0.88] \{0.1--0.9\} & $-$0.01 \\" in lines


def test_a_terminal_stacks_intervals_below_their_numbers_or_beside_them() -> None:
    stacked = [line.split() for line in printed(TABLE).splitlines()]
    assert ["vcd_with_a_long_name", "0.81", "+0.02"] in stacked
    assert ["0.78–0.84"] in stacked
    assert "{0.1–0.9}" in printed(TABLE)
    assert "0.81 0.78–0.84" in printed(TABLE, stacked=False)
    assert "AUROC: of the margin" in printed(TABLE)


def test_a_terminal_shows_of_a_column_what_it_is_told() -> None:
    columns = [
        Column("arm", "left", fold=8),
        Column("p (Holm)", short="p", narrow=Narrow.TERSE),
        Column("d′", narrow=Narrow.VALUE),
        Column("wide", narrow=Narrow.NOTHING),
    ]
    cells = ["vcd_alpha=0.5", "<0.001", Cell("1.20", "1.0–1.4"), "hidden"]
    record = dict(zip([column.heading for column in columns], cells, strict=True))
    text = printed(Table.of("Arms", [record], columns=columns))
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines[-3:] == [["vcd_", "<.001", "1.20"], ["alpha="], ["0.5"]]
    for absent in ("1.0–1.4", "hidden", "wide"):
        assert absent not in text


def test_markup_in_a_cell_is_text() -> None:
    assert "[red]vcd" in printed(Table.of("Arms", [{"arm": "[red]vcd"}]))


def test_a_row_with_a_reason_fills_every_column() -> None:
    table = Table.of("Arms", [{"arm": "y", "a": "1", "b": "2"}, {"arm": "x", "a": Cell("has no margin", reason=True)}])
    assert table.text.to_numpy().tolist()[1] == ["x", "has no margin", ""]
    assert printed(table).count("n/a") == 2


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(AssertionError, match="headings occur twice"):
        Table.of("Arms", [], columns=[Column("a"), Column("a")])


def test_latex_takes_no_cell_for_a_command_or_an_argument() -> None:
    lines = latex(
        Table.of("", [{"a_b": "[2mm] \\input{x}", "c": "~^<▲ rose\nfast>"}, {"a_b": "*", "c": "50%"}])
    ).splitlines()
    assert lines[2] == r"a\_b & c \\"
    sign = r"\textasciitilde{}\textasciicircum{}\textless{}$\uparrow$ rose fast\textgreater{}"
    assert lines[4:6] == [rf"{{}}[2mm] \textbackslash{{}}input\{{x\}} & {sign} \\", r"{}* & 50\% \\"]


@pytest.mark.parametrize(("wide", "parts"), [
    (200, [list("abcdefg")]), (70, [list("abcdefg")]), (69, [list("abcd"), list("aefg")]),
    (45, [list("abcd"), list("aefg")]), (35, [list("abc"), list("ade"), list("afg")]),
    (1, [["a", one] for one in "bcdefg"]),
])  # fmt: skip
def test_a_wide_table_is_several_of_about_as_many_columns_led_by_the_first(wide: int, parts: list[list[str]]) -> None:
    table = Table.of("", [dict.fromkeys("abcdefg", "ten signs."), dict.fromkeys("abcdefg", "x")])
    found = table.split(wide)
    assert [list(part.frame) for part in found] == parts
    assert [[column.heading for column in part.columns] for part in found] == parts
    assert [latex(part).count("ten signs.") for part in found] == [len(part) for part in parts]
