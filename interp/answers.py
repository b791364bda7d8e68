"""Which tokens begin "Yes" and "No" where the prompt ends. Knows nothing of models or images."""

from typing import Any, NamedTuple

from interp.errors import UserError

YES = ("Yes", " Yes")
NO = ("No", " No")


class AnswerIds(NamedTuple):
    """First tokens of the two answers, most often one each; no token is in both."""

    yes: list[int]
    no: list[int]


def answer_ids(tokenizer: Any, rendered: str, *, name: str = "this model") -> AnswerIds:
    """The first tokens of "Yes" and " Yes" (of "No" and " No") as they continue ``rendered``, a prompt without answer.

    SentencePiece and byte-level BPE have two tokens for the two spellings, a word-level tokenizer one. A spelling that
    changes the prompt's own last token is no continuation and is left out; after a prompt that ends in a space (``: ``
    + ``Yes`` is ``:`` + ``▁Yes``) the spellings that continue it without that space count too. A first token that both
    answers share (a lone ``▁``) tells nothing and is left out.

    Raises:
        UserError: no first token tells Yes from No.
    """
    yes, no = (_first_tokens(tokenizer, rendered, spellings) for spellings in (YES, NO))
    found = AnswerIds([i for i in yes if i not in no], [i for i in no if i not in yes])
    if not (found.yes and found.no):
        raise UserError(
            f"the tokenizer of {name} has no first token that tells Yes from No (Yes: {yes}, No: {no}); margins need "
            "one; choose a checkpoint whose vocabulary holds both words"
        )
    return found


def _first_tokens(tokenizer: Any, rendered: str, spellings: tuple[str, ...]) -> list[int]:
    found = []
    for prompt in (rendered, rendered.rstrip(" ")):
        before = _encode(tokenizer, prompt)
        for spelling in spellings:
            after = _encode(tokenizer, prompt + spelling)
            answer = after[len(before) :]
            if after[: len(before)] == before and answer and tokenizer.unk_token_id not in answer:
                found.append(answer[0])
    return list(dict.fromkeys(found))


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
