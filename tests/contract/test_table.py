"""The table is made of findings alone, and a finding against it is noticed."""

from dataclasses import replace

from tests.contract.table import CAPABILITIES, Found, contradiction, differences, drawn, table

WORKS = Found("llava", ("generate", "score"), "a.py::b[llava]", passed=True)
REFUSED = Found("idefics", ("maps",), "a.py::c[idefics]", passed=True, not_applicable="no image tokens")
VERSIONS = {"transformers": "5.23.0", "torch": "2.13.0"}


def test_a_capability_works_if_all_its_tests_say_so() -> None:
    limited = replace(WORKS, test="a.py::d[llava]", capabilities=("generate",), limit="with an image alone")
    failed = replace(WORKS, test="a.py::e[llava]", passed=False, error="ValueError: x")
    cells = table([WORKS, limited, REFUSED], VERSIONS)["families"]["llava"]["capabilities"]
    assert list(cells) == ["generate", "score"]
    assert cells["generate"] == {"works": True, "reason": "with an image alone", "test": "a.py::d[llava]"}
    assert cells["score"] == {"works": True, "reason": None, "test": "a.py::b[llava]"}
    cells = table([limited, WORKS, failed], VERSIONS)["families"]["llava"]["capabilities"]
    assert cells["generate"] == {"works": False, "reason": "fails: ValueError: x", "test": "a.py::e[llava]"}


def test_contradictions_of_one_test() -> None:
    committed = table([WORKS, REFUSED], VERSIONS)
    assert contradiction(WORKS, committed) == contradiction(REFUSED, committed) == ""
    assert "works there, and is refused here: no" in contradiction(replace(WORKS, not_applicable="no"), committed)
    assert "is refused there, and works here" in contradiction(replace(REFUSED, not_applicable=""), committed)
    assert contradiction(replace(REFUSED, not_applicable="", test="another"), committed) == ""
    assert contradiction(replace(WORKS, family="new"), committed) == "new generate is not in it"


def test_differences_of_two_tables() -> None:
    one, other = table([WORKS, REFUSED], VERSIONS), table([replace(WORKS, not_applicable="no")], VERSIONS)
    assert differences(one, one) == []
    assert differences(other, one) == ["llava generate: works → does not (no)", "llava score: works → does not (no)"]
    lines = drawn(one)
    assert lines[0].split() == list(CAPABILITIES)
    assert lines[1].split()[:2] == ["idefics", "?"]
    assert "−" in lines[1]
    assert "+" in lines[2]
