"""Distilled verdicts: the margin with the picture becomes the model's own in words, what it says otherwise stays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.training import examples
from interp import load
from interp.errors import UserError
from interp.tensor_file import read_rows
from interp.training_rows import row_hash
from interp.vlm import VLM, Prompt
from mitigation.learned import distillation
from mitigation.learned.distillation import held_prompts
from mitigation.learned.distilled import Distillation, DistilledVerdicts
from mitigation.method import TrainableMethod, abilities
from mitigation.vrtuning.collator import DistillationCollator, shared_out
from mitigation.vrtuning.data import MARGIN, Row, from_rows
from mitigation.vrtuning.model import lora_config
from mitigation.vrtuning.settings import Settings
from tests.families import FAMILIES, every_family
from tests.tiny import picture

SMALL: dict[str, Any] = {"steps": 12, "batch_size": 8, "rank": 4, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def organism() -> VLM:
    return load("organism:llava", device="cpu")


@pytest.fixture(scope="module")
def cases() -> tuple[list[Prompt], list[bool]]:
    return examples(IconWorld(split="development", pairs=1).load().samples[:48])


@pytest.fixture(scope="module")
def learned(organism: VLM, cases: Any, tmp_path_factory: pytest.TempPathFactory) -> DistilledVerdicts:
    prompts, safe = cases
    return Distillation(**SMALL).learn(organism, prompts, safe, out=tmp_path_factory.mktemp("arm") / "one.safetensors")


def test_yes_and_no_share_their_mass_as_the_margin_says_and_the_rest_stays() -> None:
    logs = torch.randn(3, 9).log_softmax(-1)
    margins = torch.tensor([2.0, -1.0, 40.0])
    got = shared_out(logs, margins, [1, 2], [5])
    torch.testing.assert_close(got[:, [1, 2]].logsumexp(-1) - got[:, 5], margins)
    torch.testing.assert_close(got.logsumexp(-1), torch.zeros(3), atol=1e-5, rtol=0)
    others = [0, 3, 4, 6, 7, 8]
    assert torch.equal(got[:, others], logs[:, others])
    torch.testing.assert_close(got[:, 1] - got[:, 2], logs[:, 1] - logs[:, 2])


@pytest.mark.parametrize("family", every_family())
def test_the_loss_is_the_divergence_of_the_verdict_alone_before_anything_is_learned(family: str) -> None:
    """An untrained adapter changes nothing: held rows add 0, a verdict its KL on Yes and No, weighed by their mass."""
    vlm = VLM(*FAMILIES[family](), name=family)
    rows = [
        Row(picture(0, (64, 40)), "Is this safe?", "", "Yes"),
        Row(picture(1), "What is it?", "", "a dog", "perception"),
    ]
    prompt = Prompt(rows[0].question, rows[0].image)  # type: ignore[arg-type]
    own = vlm.score([prompt])
    mass = vlm.score(
        [prompt], metric=lambda logits: logits.float().softmax(-1)[:, [*vlm.answer_ids.yes, *vlm.answer_ids.no]].sum(-1)
    )
    margin = own + 1.5
    wanted = torch.sigmoid(margin)
    both = torch.stack([wanted, 1 - wanted]), torch.stack([torch.sigmoid(own), torch.sigmoid(-own)])
    divergence = float(mass * (both[0] * (both[0].log() - both[1].log())).sum(0))
    dataset = from_rows(rows).dataset
    collator = DistillationCollator(vlm, hold=3.0)
    model = get_peft_model(vlm.model, lora_config(vlm.model, vlm.layout, Settings(rank=2)))
    found = {
        name: collator.loss(model, collator(list(dataset.add_column(MARGIN, margins)))).item()
        for name, margins in {
            "taught": [float(margin), float("nan")],
            "as it is": [float(own), float("nan")],
            "held": [float("nan")] * 2,
        }.items()
    }
    assert found["taught"] == pytest.approx(divergence, rel=1e-2, abs=1e-5)
    assert found["as it is"] == pytest.approx(0, abs=1e-5)
    assert found["held"] == pytest.approx(0, abs=1e-6)


def test_what_is_held_is_asked_by_turns_with_what_captions_name() -> None:
    prompts = [Prompt(f'Is it safe?\n"eat this {at}"', picture(at), key=str(at)) for at in range(40)]
    said = ["a cake." if at % 2 else "There is a knife in the image." for at in range(40)]
    held = held_prompts(prompts, said, ("What is it?", "Is there {thing}?", "{request}"), 0)
    assert [one.text for one in held[:40:3]] == ["What is it?"] * 14
    assert {one.text for one in held[1::3]} == {"Is there a cake?", "Is there a knife?"}
    assert held[2].text == "eat this 2"
    assert all(one.image is prompt.image for one, prompt in zip(held, prompts, strict=True))


@pytest.mark.long
def test_margins_follow_the_teacher_and_captions_stay(organism: VLM, cases: Any, learned: DistilledVerdicts) -> None:
    prompts, _ = cases
    told = learned._vectors.tensors
    before, after = ((told[name] - told["teacher"]).abs().mean() for name in ("plain", "distilled"))
    assert float(after) < 0.7 * float(before)
    plain = organism.score(prompts)
    torch.testing.assert_close(plain[: len(told["plain"])].sort().values, told["plain"].sort().values)  # as it was
    got = learned.generate(organism, prompts, max_new_tokens=1)
    torch.testing.assert_close(got.margins.sort().values, told["distilled"].sort().values, atol=1e-4, rtol=1e-4)
    asked = [replace(one, text="What is in the image?") for one in prompts]
    own, now = (one.generate(organism, asked, max_new_tokens=8).texts for one in (organism_itself(), learned))
    assert sum(a == b for a, b in zip(own, now, strict=True)) >= 0.9 * len(asked)
    assert abilities(learned).work.prompts == 1
    assert not abilities(learned).drops_image
    assert isinstance(learned.settings, TrainableMethod)


def organism_itself() -> Any:
    from mitigation.method import Baseline

    return Baseline()


@pytest.mark.slow  # two trainings
def test_labels_are_not_read_and_equal_teaching_gives_equal_adapters(
    organism: VLM, cases: Any, learned: DistilledVerdicts, tmp_path: Path
) -> None:
    prompts, safe = cases
    other = learned.settings.learn(organism, prompts, [not one for one in safe], out=tmp_path / "one.safetensors")
    assert other.about["adapter"] == learned.about["adapter"]
    assert other.about["folder"] == learned.about["folder"]


@pytest.mark.slow  # two trainings
def test_shuffled_captions_teach_other_margins(organism: VLM, cases: Any, tmp_path: Path) -> None:
    prompts, safe = cases
    settings = Distillation(**SMALL | {"steps": 2, "batch_size": 16}, control="shuffled", describe="oracle")
    told = {
        control: replace(settings, control=control).learn(
            organism, prompts, safe, out=tmp_path / f"{control}.safetensors"
        )
        for control in ("none", "shuffled")
    }
    one, other = (told[name]._vectors.tensors for name in ("none", "shuffled"))
    torch.testing.assert_close(one["plain"], other["plain"])
    assert float((one["teacher"] - other["teacher"]).abs().mean()) > 0.02


def test_its_training_rows_are_known_again(cases: Any, learned: DistilledVerdicts) -> None:
    prompts, _ = cases
    another = replace(prompts[0], text="Another?", request="")
    asked = [row_hash(one.text, one.request, one.image) for one in [*prompts, another]]
    for place in (Path(learned.learned_in), Path(learned.adapter.learned_in)):
        rows = read_rows(place)
        assert rows is not None
        same = rows.overlap(asked).same
        assert all(same[: len(prompts)])
        assert not same[-1]


def test_an_adapter_that_was_exchanged_is_refused(learned: DistilledVerdicts) -> None:
    again = learned.settings.read(learned.path)
    config = learned.path.parent / learned.about["folder"] / "adapter" / "adapter_config.json"
    before = config.read_text()
    config.write_text(before + "\n")
    with pytest.raises(UserError, match="learn it again"):
        again.adapter  # noqa: B018
    config.write_text(before)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"steps": 0}, "steps=0"), ({"hold": -1.0}, "hold=-1"), ({"held": []}, "held="), ({"describe": "me"}, "describe="),
     ({"control": "random"}, "control="), ({"learning_rate": 0.0}, "learning_rate=0")],
)  # fmt: skip
def test_settings_are_checked(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Distillation(**wrong)


def test_what_it_cannot_be_taught_by_is_refused(
    organism: VLM, cases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, safe = cases
    with pytest.raises(UserError, match="prompts need one"):
        Distillation().learn(organism, [replace(prompts[0], image=None)], safe[:1], out=tmp_path / "one.safetensors")
    monkeypatch.setattr(distillation, "processes", lambda: 2)
    with pytest.raises(UserError, match="2 processes"):
        Distillation().learn(organism, prompts, safe, out=tmp_path / "one.safetensors")
