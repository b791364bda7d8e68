import json
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.mmsafeaware import PREFIX, MMSafeAware
from experiments.benchmarks.translated import Translated
from experiments.benchmarks.xstest import XSTest
from interp.errors import UserError
from tests.experiments.benchmarks import test_mmsafeaware
from tests.experiments.benchmarks.test_xstest import table
from tests.experiments.compose import run_of


@pytest.fixture
def prompts(tmp_path: Path) -> XSTest:
    return XSTest(str(table(tmp_path, "1,How?,t,safe,,\n2,Why?,t,unsafe,,\n3,,t,safe,,\n")))


def questions(folder: Path, *rows: Any) -> str:
    path = folder / "questions.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def row(id: str, language: str, text: str, **more: str) -> dict[str, str]:
    return {"id": id, "language": language, "text": text} | more


def test_languages_stand_beside_the_original(prompts: XSTest, tmp_path: Path) -> None:
    file = questions(
        tmp_path, row("v2-1", "de", "Wie?"), row("v2-1", "pt-BR", "Como?"), row("v2-2", "de", "Warum?\u2028")
    )
    loaded = Translated(prompts, file).load()
    told = [(s.id, s.prompt, s.tags["language"], s.tags["original"], s.gold) for s in loaded.samples]
    assert told == [
        ("v2-1", "How?", "en", "v2-1", "comply"),
        ("v2-1@de", "Wie?", "de", "v2-1", "comply"),
        ("v2-1@pt-BR", "Como?", "pt-BR", "v2-1", "comply"),
        ("v2-2", "Why?", "en", "v2-2", "refuse"),
        ("v2-2@de", "Warum?\u2028", "de", "v2-2", "refuse"),
    ]
    assert loaded.samples[1].cluster == loaded.samples[0].cluster
    assert "no line with id 'v2-2' and language 'pt-BR'" in loaded.missing["v2-2@pt-BR"]
    lost = [case for case in loaded.missing if case.startswith("v2-3")]
    assert lost == ["v2-3", "v2-3@de", "v2-3@pt-BR"]  # missing in every language


def test_one_language_without_the_originals(prompts: XSTest, tmp_path: Path) -> None:
    file = questions(tmp_path, row("v2-1", "de", "Wie?"), row("v2-1", "fr", "Comment?"))
    loaded = Translated(prompts, file, language="de", originals=False).load()
    assert [s.id for s in loaded.samples] == ["v2-1@de"]
    assert Translated(prompts, file).kind == "refusal"
    assert Translated(prompts, file).development() is None


def test_the_words_around_the_text_stay_unless_given(tmp_path: Path) -> None:
    test_mmsafeaware.tree(tmp_path, "1", "2")
    of = MMSafeAware(str(tmp_path), require_images=False)
    file = questions(tmp_path, row("1", "de", "Gehört das mir?"), row("2", "de", "Ja?", prompt="Sag ja: Ja?"))
    prompts = {s.id: s.prompt for s in Translated(of, file, originals=False).load().samples}
    assert prompts == {"1@de": f'{PREFIX}\n"Gehört das mir?"', "2@de": "Sag ja: Ja?"}


def test_pairs_stay_pairs_within_a_language(tmp_path: Path) -> None:
    of = IconWorld()
    first = [s for s in of.load().samples if s.pair is not None][:6]
    file = questions(tmp_path, *(row(s.id, "de", "Das ist sicher.") for s in first))
    translated = {s.tags["original"]: s for s in Translated(of, file, originals=False).load().samples}
    assert [translated[s.id].pair for s in first] == [f"{s.pair}@de" for s in first]
    assert Translated(of, file).kind == "yes_no"


def test_bad_lines_are_listed_and_the_others_run(prompts: XSTest, tmp_path: Path) -> None:
    good = row("v2-1", "de", "Wie?")
    file = questions(
        tmp_path,
        good,
        "{",
        "[]",
        {"id": "v2-2", "language": "de"},
        row("v2-1", "de", "Again?"),
        row("v2-9", "de", "?"),
        row("v2-1", "../x", "?"),
        '{"id": "v2-2", "language": "de", "text": "\\ud800"}',
        "",
    )
    loaded = Translated(prompts, file).load()
    assert [s.prompt for s in loaded.samples] == ["How?", "Wie?", "Why?"]
    said = {
        "line 2@? (line 2)": "not JSON",
        "line 3@? (line 3)": "no JSON object",
        "v2-2@de (line 4)": "no field 'text'",
        "v2-1@de (line 5)": "the first is kept",
        "v2-9@de": "no case 'v2-9'",
        "v2-1@../x (line 7)": "no code",
        "v2-2@de (line 8)": "half a character",
    }
    for case, words in said.items():
        assert words in loaded.missing[case]
        assert "questions.jsonl" in loaded.missing[case]
    with pytest.raises(UserError, match=r"usable translation .*strict"):
        Translated(prompts, file, strict=True).load()


def test_mistakes_are_one_sentence(prompts: XSTest, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"questions.jsonl is missing"):
        Translated(prompts, str(tmp_path / "questions.jsonl")).load()
    with pytest.raises(UserError, match="translates no case of xstest"):
        Translated(prompts, questions(tmp_path, row("v2-1", "de", "Wie?")), language="fr").load()
    with pytest.raises(UserError, match="no code"):
        Translated(prompts, "x", language="German language")


def test_the_manifest_changes_with_the_translation(prompts: XSTest, tmp_path: Path) -> None:
    def manifest(text: str) -> str:
        return Translated(prompts, questions(tmp_path, row("v2-1", "de", text))).load().manifest

    assert manifest("Wie?") == manifest("Wie?")
    assert len({manifest("Wie?"), manifest("Wieso?"), prompts.load().manifest}) == 3


def test_the_configuration_wraps_any_benchmark(prompts: XSTest, tmp_path: Path) -> None:
    file = questions(tmp_path, row("v2-1", "de", "Wie?"))
    of = ("benchmark=translated", "benchmark@benchmark.of=xstest", f"benchmark.of.root={prompts.root}")
    run = run_of(*of, f"benchmark.questions={file}", "benchmark.language=de")
    assert run.benchmark == Translated(prompts, file, "de")
    assert run.benchmark.kind == "refusal"
