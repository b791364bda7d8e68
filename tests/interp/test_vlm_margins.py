"""Which tokens begin Yes and No, for each kind of tokenizer."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from interp.errors import UserError
from interp.generation import AnswerIds, answer_ids
from interp.vlm import VLM, Prompt, logit_difference
from tests import families
from tests.tiny import picture

PIECES = ["<unk>", "▁", "▁Yes", "▁No", "Yes", "No", ":", "▁ASSISTANT", "▁USER", "Y", "es", "N", "o", "▁the", "\n"]


def unigram(pieces: list[str]) -> Any:
    """SentencePiece's unigram model in Llama's set-up: spaces as ``▁``, one put in front of the text."""
    backend = Tokenizer(models.Unigram([(piece, -1.0 - 0.1 * i) for i, piece in enumerate(pieces)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def llama_bpe() -> Any:
    """Llama's BPE: the same pieces, reached by merges."""
    merges = [("Y", "e"), ("Ye", "s"), ("N", "o"), ("▁", "Yes"), ("▁", "No")]
    pieces = ["<unk>", "▁", *"ASITNUERYeso:x", *("".join(pair) for pair in merges)]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, merges))
    backend.normalizer = normalizers.Replace(" ", "▁")
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def words(tokenizer: Any, ids: AnswerIds) -> tuple[list[str], list[str]]:
    return tokenizer.convert_ids_to_tokens(ids.yes), tokenizer.convert_ids_to_tokens(ids.no)


@pytest.mark.parametrize("tokenizer", [unigram(PIECES), llama_bpe()], ids=["unigram", "bpe"])
@pytest.mark.parametrize("prompt", ["USER: x ASSISTANT:", "ASSISTANT"])
def test_sentencepiece_has_two_spellings(tokenizer: Any, prompt: str) -> None:
    assert words(tokenizer, answer_ids(tokenizer, prompt)) == (["Yes", "▁Yes"], ["No", "▁No"])


def test_a_prompt_that_ends_in_a_space() -> None:
    # "ASSISTANT: " is ..., ":", "▁" but "ASSISTANT: Yes" is ..., ":", "▁Yes": the prompt's last token would change.
    tokenizer = unigram(PIECES)
    assert words(tokenizer, answer_ids(tokenizer, "ASSISTANT: ")) == (["▁Yes", "Yes"], ["▁No", "No"])


def test_what_changes_the_prompts_last_token_is_no_continuation() -> None:
    # "ASSISTANT: Yes" is ..., ":", "▁Y", "es" where "ASSISTANT: " is ..., ":", "▁": "es" begins no answer.
    tokenizer = unigram(["<unk>", "▁", "▁Y", "▁N", "Y", "N", "es", "o", ":", "▁ASSISTANT"])
    assert words(tokenizer, answer_ids(tokenizer, "ASSISTANT: ")) == (["▁Y", "Y"], ["▁N", "N"])


def test_byte_level_after_a_new_line() -> None:
    tokenizer = families.qwen2_vl().processor.tokenizer
    ids = answer_ids(tokenizer, "<|im_start|>assistant\n")
    assert [tokenizer.decode([i]) for i in (*ids.yes, *ids.no)] == ["Ye", " Yes", "No", " No"]


def test_a_token_that_both_answers_share_is_left_out() -> None:
    tokenizer = unigram([piece for piece in PIECES if piece not in ("▁Yes", "▁No")])  # " Yes" is "▁", "Yes"
    assert words(tokenizer, answer_ids(tokenizer, "ASSISTANT:")) == (["Yes"], ["No"])


def test_a_vocabulary_without_the_words_is_refused() -> None:
    with pytest.raises(UserError, match="tells Yes from No"):
        answer_ids(unigram(["<unk>", "▁", ":", "a"]), "a:")
    with pytest.raises(UserError, match="tells Yes from No"):  # the unknown token is no "Yes"
        answer_ids(unigram(["<unk>", "▁", ":", "a", "No", "▁No"]), "a:")


def test_margin_adds_up_spellings_as_probabilities(vlm: VLM) -> None:
    vlm.__dict__["_first_ids"] = AnswerIds([0, 2], [1])
    logits = torch.tensor([[1.0, 2.0, 3.0, 9.0]], dtype=torch.bfloat16)
    p = logits.float().softmax(-1)[0]
    torch.testing.assert_close(vlm.margin(logits), ((p[0] + p[2]) / p[1]).log()[None])


def test_a_metric_takes_the_margins_place(vlm: VLM) -> None:
    prompts = [Prompt("Is this safe?", picture(0)), Prompt("How do I kill the dog?", picture(1))]
    with torch.no_grad():
        logits = vlm.model(**vlm.encode(prompts)).logits[:, -1]
    red, blue = vlm.tokenizer.convert_tokens_to_ids(["red", "blue"])
    by_hand = logits[:, red] - logits[:, blue]
    torch.testing.assert_close(vlm.score(prompts, metric=logit_difference(vlm, "red", "blue")), by_hand)
    torch.testing.assert_close(vlm.score(prompts, metric=lambda found: found.logsumexp(-1)), logits.logsumexp(-1))
    assert torch.equal(vlm.score(prompts, metric=logit_difference(vlm, "Yes", "No")), vlm.score(prompts))


def test_one_prompt_is_scored_as_a_list_of_one(vlm: VLM) -> None:
    prompt = Prompt("Is it safe?", picture())
    assert torch.equal(vlm.score(prompt), vlm.score([prompt]))
    assert vlm.score(prompt).shape == (1,)
