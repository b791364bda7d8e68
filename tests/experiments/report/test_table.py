"""One table, every form of it."""

import csv
import io

from rich.console import Console

from experiments.report.table import Cell, Table, csv_text, latex, markdown, terminal

RECORDS = [
    {"arm": "vcd_with_a_long_name", "AUROC": Cell("0.81", "0.78–0.84"), "Δ": "+0.02"},
    {"arm": "a|b & c", "AUROC": Cell("0.79", "0.70–0.88", bounds="0.1–0.9"), "Δ": "−0.01"},
]
TABLE = Table.of("Arms", RECORDS, legend="AUROC: of the margin")


def printed(table: Table, *, stacked: bool = True, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(terminal(table, stacked=stacked))
    return console.export_text()


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


def test_markup_in_a_cell_is_text() -> None:
    assert "[red]vcd" in printed(Table.of("Arms", [{"arm": "[red]vcd"}]))


def test_latex_takes_no_cell_for_a_command_or_an_argument() -> None:
    lines = latex(
        Table.of("", [{"a_b": "[2mm] \\input{x}", "c": "~^<▲ rose\nfast>"}, {"a_b": "*", "c": "50%"}])
    ).splitlines()
    assert lines[2] == r"a\_b & c \\"
    sign = r"\textasciitilde{}\textasciicircum{}\textless{}$\uparrow$ rose fast\textgreater{}"
    assert lines[4:6] == [rf"{{}}[2mm] \textbackslash{{}}input\{{x\}} & {sign} \\", r"{}* & 50\% \\"]
