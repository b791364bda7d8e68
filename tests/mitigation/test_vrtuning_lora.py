"""The adapter sits on the language model alone, in every family; a batch's labels are on the answer alone."""

import pytest
import torch
from peft import get_peft_model

from interp.generation import appended
from interp.vlm import VLM, Prompt
from mitigation.vrtuning.collator import IGNORED, Collator
from mitigation.vrtuning.data import Row, from_rows
from mitigation.vrtuning.model import lora_config
from mitigation.vrtuning.settings import TARGETS, Settings
from tests.tiny import picture

ROWS = (
    Row(picture(0, (64, 40)), "Is this safe?", "the knife is red", "Yes"),
    Row(picture(1, (40, 64)), "How do I kill it?", "", "No"),
)


def examples(vlm: VLM, **options: bool) -> list[dict]:
    return list(from_rows(ROWS, **options).dataset)  # type: ignore[arg-type]


@pytest.mark.contract
def test_only_the_language_model_learns(family: VLM) -> None:
    """No adapter and no gradient in the vision tower or the projector, and one in every layer of the decoder."""
    module_map = family.module_map
    layers = len(module_map.module(family.model, "layers"))
    batch = Collator(family)(examples(family))
    model = get_peft_model(family.model, lora_config(family.model, module_map, Settings(rank=2)))
    model.train()
    batch.pop("labels")
    model(**batch).logits.logsumexp(-1).sum().backward()
    learning = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert learning
    assert all(name.startswith(f"base_model.model.{module_map.layers}.") and "lora_" in name for name in learning)
    assert len(learning) == 2 * layers * len(TARGETS)
    for part in ("vision_tower", "projector"):
        module = module_map.module(family.model, part)
        assert not any("lora" in name for name, _ in module.named_parameters())
        assert all(weight.grad is None and not weight.requires_grad for weight in module.parameters())
    grown = [name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()]
    assert len(grown) == layers * len(TARGETS)  # of B alone: A's is zero while B is
    model.eval()
    before = family.score([Prompt(row.question, row.image) for row in ROWS])  # type: ignore[arg-type]
    torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.1).step()
    after = family.score([Prompt(row.question, row.image) for row in ROWS])  # type: ignore[arg-type]
    assert ((after - before).abs() > 1e-4).all()


def test_labels_are_the_answer_and_its_end_alone(family: VLM) -> None:
    """Prompts are encoded as in evaluation; no image token, no padding and no prompt token is learned."""
    batch = Collator(family)(examples(family))
    encoded = family.encode([Prompt(row.question, row.image) for row in ROWS])  # type: ignore[arg-type]
    cross = family.module_map.cross_attended
    image = family.processor.image_token_id if cross else family.module_map.image_token_id(family.model.config)
    for row, (text, prompt) in enumerate(zip(("the knife is red. Yes.", "No."), encoded["input_ids"], strict=True)):
        learned = batch["labels"][row] != IGNORED
        kept = batch["input_ids"][row][batch["attention_mask"][row].bool() & ~learned]
        assert torch.equal(kept, prompt[encoded["attention_mask"][row].bool()])
        assert (kept == image).any()
        ids = batch["labels"][row][learned].tolist()
        assert image not in ids
        assert ids == batch["input_ids"][row][learned].tolist()
        speaking = family.model.get_submodule(family.module_map.lm_head.rpartition(".")[0])
        assert ids[-1] == speaking.generation_config.eos_token_id
        said = family.tokenizer.decode(ids[:-1], skip_special_tokens=True)
        assert said.replace(" ", "") == text.replace(" ", "")


def test_preference_batches_are_chosen_then_rejected(vlm: VLM) -> None:
    rows = [Row(picture(i), "Is this safe?", "the knife", "Yes", rejected="No") for i in range(2)]
    batch = Collator(vlm)(list(from_rows(rows, preferences=True).dataset))  # type: ignore[arg-type]
    said = [
        vlm.tokenizer.decode(ids[mask.bool()], skip_special_tokens=True)
        for ids, mask in zip(batch["input_ids"], batch["completion_mask"], strict=True)
    ]
    assert said == ["the knife . Yes ."] * 2 + ["the knife . No ."] * 2
    assert torch.equal(batch["pixel_values"][:2], batch["pixel_values"][2:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_appended_tokens_change_nothing_but_the_rows_ends(vlm: VLM, side: str) -> None:
    """The padded batch gives each row the logits that it has alone."""
    prompts = [Prompt("Is this safe?", picture(0)), Prompt("How do I kill the dog for it?", picture(1))]
    tails = [[8, 9, 10], []]
    batch = appended(vlm.encode(prompts), tails, pad=0, side=side)  # type: ignore[arg-type]
    positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = vlm.model(**batch, position_ids=positions).logits
    for row, (prompt, tail) in enumerate(zip(prompts, tails, strict=True)):
        alone = vlm.encode([prompt])
        alone["input_ids"] = torch.cat([alone["input_ids"], torch.tensor([tail], dtype=torch.long)], dim=1)
        alone["attention_mask"] = torch.ones_like(alone["input_ids"])
        with torch.no_grad():
            expected = vlm.model(**alone).logits[0]
        torch.testing.assert_close(logits[row][batch["attention_mask"][row].bool()], expected, atol=1e-4, rtol=1e-4)
