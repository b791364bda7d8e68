"""A method that learns, in a file of the user's: on labelled cases, saved, resumed, in folds; what is wrong is said."""

import copy
from pathlib import Path
from unittest.mock import patch

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.fitting import examples, learned
from experiments.runs.store import open_run
from interp.errors import UserError
from interp.tensor_file import read_tensors
from interp.vlm import VLM, Prompt
from mitigation.method import MethodFault
from mitigation.own_file import OwnLearner, own_method

SCORES = """
def learn(vlm, prompts, safe):
    return {"margins": vlm.batches.scores(prompts)}


def rule(scores, step, *, learned, prompts):
    assert len(prompts) == len(scores)
    return scores + learned["margins"].mean()
"""


@pytest.fixture
def cases() -> tuple[list[Prompt], list[bool]]:
    return examples([sample for sample in IconWorld().development().samples if sample.subset != "control"][:10])


def test_what_is_learned_is_saved_and_comes_back(
    vlm: VLM, tmp_path: Path, cases: tuple[list[Prompt], list[bool]]
) -> None:
    code = """
import torch

def learn(vlm, prompts, safe):
    one = torch.arange(3.0)
    tensors = {"one": one, "same": one, "exact": one.double(), "ids": torch.tensor([5, 7]), "safe": torch.tensor(safe)}
    return tensors | {"count": len(prompts), "share": sum(safe) / len(safe)}

def rule(scores, step, *, learned, factor=1.0):
    assert learned["exact"].dtype == torch.float32 and torch.equal(learned["one"], learned["same"])
    assert learned["ids"].dtype == torch.int64 and learned["ids"].tolist() == [5, 7] and type(learned["count"]) is int
    return scores * 0 + factor * learned["share"]
"""
    (tmp_path / "mine.py").write_text(code)
    out, method = tmp_path / "learned.safetensors", own_method(str(tmp_path / "mine.py"), {"factor": 3.0})
    taught = method.learn(vlm, *cases, out=out)
    about = read_tensors(out, OwnLearner.KIND).about
    assert read_tensors(out, OwnLearner.KIND).tensors["safe"].tolist() == cases[1]
    assert (about["numbers"]["count"], about["n"], about["revision"]) == (10, 10, vlm.revision)
    assert method.read(out) == taught
    assert taught.learned_digest in repr(taught)
    assert taught.generate(vlm, cases[0], max_new_tokens=1).margins.tolist() == pytest.approx([0.0] * 10, abs=1e-5)
    other = VLM(vlm.model, vlm.processor, name="other")
    other.revision = "sha256:other"
    with pytest.raises(UserError, match=r"learned on .* which differs from other in its weights .*sha256:other"):
        taught.generate(other, cases[0], max_new_tokens=1)


@pytest.mark.long
def test_changed_code_learns_again(vlm: VLM, tmp_path: Path, cases: tuple[list[Prompt], list[bool]]) -> None:
    samples = [sample for sample in IconWorld().development().samples if sample.subset != "control"][:10]
    file = tmp_path / "mine.py"
    watched = patch.object(VLM, "score", autospec=True, side_effect=VLM.score)
    with open_run(str(tmp_path), "x", {}, "hash", fresh=True) as store, watched as score:
        for code in (SCORES, SCORES, f"{SCORES}\n# changed\n"):
            file.write_text(code)
            learned(store, "mine", own_method(str(file)), vlm, samples)
        assert sum(len(call.args[1]) for call in score.call_args_list) == 20
        other = VLM(vlm.model, copy.deepcopy(vlm.processor), name=vlm.name, revision=vlm.revision)
        other.processor.image_processor.image_mean = [0.0, 0.0, 0.0]
        for model in (vlm, other, other):
            taught = learned(store, "mine", own_method(str(file)), model, samples)
        assert sum(len(call.args[1]) for call in score.call_args_list) == 30  # another processor's states are others
        with pytest.raises(UserError, match="in its configuration, processor, chat template or tokenizer"):
            taught.generate(vlm, cases[0], max_new_tokens=1)
    out = tmp_path / "learned.safetensors"
    own_method(str(file)).learn(vlm, *cases, out=out)
    file.write_text(SCORES)
    with pytest.raises(UserError, match=r"was learned with code [0-9a-f]{12}, and mine\.py has"):
        own_method(str(file)).read(out)


LEARN = "def learn(vlm, prompts, safe):\n    return {}\n\n\ndef rule(scores, step, *, learned):\n    return scores\n"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("{}", "learn returned nothing; learn"),
        ("{'a': 'text'}", "learn returned str as 'a'; learn"),
        ("{'a': float('nan')}", "learn returned 'a' with values that are not finite"),
        ("{'a': prompts[0].words}", r"learn raised AttributeError: .* \(mine.py, line 2\); learn"),
    ],
)
def test_what_learn_owes_is_said(
    vlm: VLM, tmp_path: Path, cases: tuple[list[Prompt], list[bool]], returned: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(LEARN.replace("{}", returned))
    with pytest.raises(MethodFault, match=said):
        own_method(str(tmp_path / "mine.py")).learn(vlm, *cases, out=tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()
