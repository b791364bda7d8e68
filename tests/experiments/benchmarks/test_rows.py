"""Workbooks as they come from strangers: values are read, nothing is run, what is broken is one sentence."""

import zipfile
from pathlib import Path

import pytest

from experiments.benchmarks.rows import read_file
from interp.errors import UserError

SPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


def package(path: Path, rows: str) -> None:
    """The parts that a workbook needs at least, around one sheet. Its dimension is wrong, as some programs write it."""
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
        f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{kind}.worksheet+xml"/></Types>',
        "xl/workbook.xml": f'<workbook {SPACE} xmlns:r="{office}">'
        '<sheets><sheet name="Sheet1" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/'
        f'relationships"><Relationship Id="rId1" Type="{office}/worksheet" Target="worksheets/sheet1.xml"/>'
        "</Relationships>",
        "xl/worksheets/sheet1.xml": f'<worksheet {SPACE}><dimension ref="A1:A1"/>'
        f"<sheetData>{rows}</sheetData></worksheet>",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        for name, content in parts.items():
            book.writestr(name, content)


NAMES = (("A", "one"), ("B", "two"), ("C", "three"))
CELLS = "".join(f'<c r="{c}1" t="inlineStr"><is><r><t>{n[:1]}</t></r><r><t>{n[1:]}</t></r></is></c>' for c, n in NAMES)
MORE = '<row r="4"><c r="A4"><f>1+1</f><v>2</v></c><c r="B4"><f>NOW()</f></c><c r="C4" t="b"><v>1</v></c></row>'


def test_saved_values_are_read_and_formulas_are_not_run(tmp_path: Path) -> None:
    package(tmp_path / "a.xlsx", f'<row r="1">{CELLS}</row>{MORE}')
    rows = read_file(tmp_path / "a.xlsx", ("one", "three")).rows
    assert rows == [("line 4", {"one": "2", "two": None, "three": "True"})]


def test_a_broken_workbook_is_said_to_be_one(tmp_path: Path) -> None:
    file = tmp_path / "a.xlsx"
    package(file, f'<row r="1">{CELLS}</row>{MORE}')
    sound = file.read_bytes()
    for content, said in (
        (b"", "not a readable .xlsx"),
        (sound[:-40], "not a readable .xlsx"),
        (b"PK\x05\x06" + bytes(18), "not a readable .xlsx"),
    ):
        file.write_bytes(content)
        with pytest.raises(UserError, match=said):
            read_file(file, ("one",))
    file.write_bytes(sound)
    with pytest.raises(UserError, match=r"no column 'Prompt'; it needs one, Prompt; get it"):
        read_file(file, ("one", "Prompt"), get="get it")
