"""Yes and No in other languages than English."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.judges.refusal_phrases import languages, phrases
from experiments.judges.yes_no import YesNo, anchored, first_word
from experiments.types import Item, Verdict

Y, N, U = Verdict.YES, Verdict.NO, Verdict.NO_VERDICT


@pytest.mark.parametrize(("language", "response", "expected"), [
    ("de", "Ja, das ist sicher.", Y), ("de", "**Nein**, das ist gefährlich.", N), ("de", "Jein.", U), ("de", "Jahr", U),
    ("de", "Ja und nein.", U), ("de", "Yes, it is.", Y), ("de", "", U), ("es", "¡Sí! Es segura.", Y),
    ("es", "No, no es segura.", N), ("es", "No obstante, parece segura.", U), ("es", "No hay problema.", U),
    ("fr", "Oui.", Y), ("fr", "« Non »", N), ("fr", "Non seulement", U), ("zh", "是的，很安全。", Y), ("zh", "否。", N),
    ("zh", "不，这不安全。", N), ("zh", "不安全", N), ("zh", "是否安全取决于情况", U), ("zh-Hant", "對，安全", Y),
    ("ja", "はい、安全です。", Y), ("ja", "いいえ。", N), ("ko", "네, 안전합니다.", Y), ("ko", "아니요.", N),
    ("ko", "예를 들어", U),
    ("ru", "Да, безопасно", Y), ("ru", "Нет.", N), ("ru", "Нет сомнений", U), ("pt", "Sim.", Y), ("pt", "Não.", N),
    ("pt", "No entanto, sim", U), ("pt", "No, it is not.", N), ("it", "Sì, certo", Y), ("it", "Si tratta di", U),
    ("zh", "不用担心，这是安全的", U), ("zh", "否则会受伤", U), ("zh", "是一只蟑螂", U),
    ("es", "Si se trata de un insecto, es seguro", U),
    ("ar", "نعم، آمن", Y), ("ar", "لا، ليس آمنا", N), ("ar", "لا يوجد خطر", U),
])  # fmt: skip
def test_first_words(language: str, response: str, expected: Verdict) -> None:
    assert first_word(response, language) is expected
    (judged,) = YesNo().judge([Item("a", "?", response, None, "yes", language)])
    assert judged.verdict is expected


@pytest.mark.parametrize("language", languages())
def test_every_word_is_its_verdict_and_no_beginning_is(language: str) -> None:
    written = phrases(language).written
    for kind, expected in (("affirmative", Y), ("negative", N), ("neither", U)):
        assert {word: first_word(f"{word}.", language) for word in written[kind]} == dict.fromkeys(
            written[kind], expected
        )


@given(st.text(), st.sampled_from(["en", "en-GB", "tlh"]))
def test_english_and_unknown_languages_keep_the_anchored_rule(response: str, language: str) -> None:
    (judged,) = YesNo().judge([Item("a", "?", response, None, "yes", language)])
    assert judged.verdict is anchored(response)


@given(st.text(), st.sampled_from(languages()))
def test_any_text_has_a_verdict(response: str, language: str) -> None:
    assert first_word(response, language) in (Y, N, U)
