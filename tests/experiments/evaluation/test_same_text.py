"""An arm whose answers are all one and the same text is named, with the text and the count, in report and terminal."""

import pandas as pd

from experiments.evaluation.scoring import same_texts

APOLOGY = "The service is busy.\nPlease come back later."


def frame(texts: list[str | None], verdict: str = "no_verdict", status: str = "answered") -> pd.DataFrame:
    return pd.DataFrame({"arm": "a", "status": status, "verdict": verdict, "response": texts})


def test_sentences_that_are_alike_are_found_of_three_answers_on() -> None:
    assert same_texts(frame([APOLOGY] * 3)) == {"a": {"text": APOLOGY, "n": 3, "word": False}}
    assert same_texts(frame([APOLOGY, f" {APOLOGY}\n", APOLOGY, None]))["a"]["n"] == 3
    assert same_texts(frame([APOLOGY] * 2)) == {}
    assert same_texts(frame([APOLOGY] * 9 + ["No."])) == {}
    assert same_texts(frame([APOLOGY] * 3, status="transport_failed")) == {}


def test_a_word_that_is_a_verdict_is_told_apart() -> None:
    assert same_texts(frame(["Yes."] * 10, "yes"))["a"]["word"]
    assert same_texts(frame(["Yes."] * 9, "yes")) == {}
    assert not same_texts(frame(["Maybe."] * 3))["a"]["word"]
    assert not same_texts(frame(["Yes, it is."] * 3, "yes"))["a"]["word"]
