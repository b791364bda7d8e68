"""``prove`` passes what is right, and catches every wrong layout: on five families, in float32 and bfloat16."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from interp.errors import UserError
from interp.layout import Layout
from interp.proof import QUICK, TOOLS, Proof, check_unknown, made_up, prove
from interp.proof_checks import LOGITS, MOST, RESTS_ON, Check, Checks
from interp.tools.lens import logit_lens
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from mitigation.vcd import VCD
from tests.families import FAMILIES
from tests.read_families import build
from tests.tiny import picture

FIVE = ("llava", "qwen2_5_vl", "gemma3", "idefics3", "internvl")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHECKS = (*QUICK, "heads")


def asked(name: str, dtype: str = "float32", *, deaf: bool = False) -> VLM:
    """A small model; a ``deaf`` one has the same margin for every picture and question."""
    model, processor = FAMILIES[name]()
    vlm = VLM(model.to(DTYPES[dtype]), processor, name=name)
    if deaf:
        tokens = [token for ids in vlm.answer_ids for token in ids]
        with torch.no_grad():
            model.get_output_embeddings().weight[tokens] = 0
            for norm in (layer.post_attention_layernorm for layer in vlm.layout.module(model, "layers")):
                norm.weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(0))  # gains as if trained
    return vlm


def shortened(vlm: VLM, first: int, last: int | None) -> Layout:
    layers = list(vlm.layout.module(vlm.model, "layers"))[first:last]
    vlm.model.shortened = torch.nn.ModuleList(layers)
    blocks = {i - first: vlm.layout.blocks[i] for i in range(first, first + len(layers))}
    return replace(vlm.layout, layers="shortened", blocks=blocks)


def of_all(vlm: VLM, **changes: str) -> Layout:
    return replace(vlm.layout, blocks={i: replace(block, **changes) for i, block in vlm.layout.blocks.items()})


def vision_tower(vlm: VLM) -> Layout:
    tower = vlm.layout.module(vlm.model, "vision_tower")
    inner = next(n for n, m in tower.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1)
    return replace(vlm.layout, layers=f"{vlm.layout.vision_tower}.{inner}")


def other_head(vlm: VLM) -> Layout:
    """A head of the same shape, with other weights."""
    own = vlm.layout.module(vlm.model, "lm_head")
    vlm.model.other_head = torch.nn.Linear(own.in_features, own.out_features, bias=False).to(own.weight.dtype)
    return replace(vlm.layout, lm_head="other_head")


def other_token(vlm: VLM) -> Layout:
    vlm.model.config.other_token = vlm.tokenizer.eos_token_id
    return replace(vlm.layout, image_token="other_token")


WRONG: dict[str, Callable[[VLM], Layout]] = {
    "first layer missing": lambda vlm: shortened(vlm, 1, None),
    "last layer missing": lambda vlm: shortened(vlm, 0, -1),
    "vision tower": vision_tower,
    "other head": other_head,
    "other norm": lambda vlm: replace(vlm.layout, final_norm=f"{vlm.layout.layers}.0.input_layernorm"),
    "other image token": other_token,
    "head sum is q_proj": lambda vlm: of_all(vlm, heads_out="self_attn.q_proj"),
    "MLP is its norm": lambda vlm: of_all(vlm, mlp="post_attention_layernorm"),
    "1d for M-RoPE": lambda vlm: replace(vlm.layout, position_kind="1d"),
}
CASES = [
    pytest.param(name, dtype, wrong, marks=[] if (name, dtype) == ("llava", "float32") else [pytest.mark.slow])
    for name in FIVE
    for dtype in DTYPES
    for wrong in WRONG
    if wrong != "1d for M-RoPE" or name.startswith("qwen")
]


@pytest.mark.parametrize(("name", "dtype", "wrong"), CASES)
def test_a_wrong_layout_is_caught(name: str, dtype: str, wrong: str) -> None:
    """Also by a model whose margin ignores the picture, and with gains of norms as training leaves them."""
    vlm = asked(name, dtype, deaf=True)
    vlm.layout = WRONG[wrong](vlm)
    caught = [check for check, found in prove(vlm, checks=CHECKS).checks.items() if found.state == "failed"]
    assert caught, wrong


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(n, d, marks=[] if (n, d) == ("llava", "float32") else pytest.mark.slow)
        for n in FIVE
        for d in DTYPES
    ],
)
def test_the_right_layout_is_proved_on_a_model_whose_margin_ignores_the_picture(name: str, dtype: str) -> None:
    vlm = asked(name, dtype, deaf=True)
    assert vlm.score([Prompt("Is it?", picture())]).abs() < 1e-6
    proof = prove(vlm, checks=CHECKS)
    assert {check: found.state for check, found in proof.checks.items()} == dict.fromkeys(CHECKS, "passed"), proof


def test_a_proof_is_whole_few_forwards_and_prints() -> None:
    proof = prove(asked("llava"))
    assert set(proof.checks) == set(RESTS_ON)
    assert proof.tools == dict.fromkeys(TOOLS, "")
    assert proof.forwards <= 40
    lines = str(proof).splitlines()
    assert lines[0] == f"llava in float32, {proof.forwards} forwards"
    assert [line.split()[:2] for line in lines if line.startswith("through")] == [["through", "passed"]]


def test_what_rests_on_a_failed_check_is_not_shown_and_refused() -> None:
    vlm = asked("llava")
    vlm.layout = WRONG["other norm"](vlm)
    proof = prove(vlm)
    assert proof.checks["chain"].state == "failed"
    assert proof.checks["lens"] == Check("not shown", why="rests on chain")
    assert "final norm does not take" in proof.tools["residuals"]
    assert proof.tools["lens"] == "lens: rests on chain"
    assert not proof.tools["score"]


def test_a_picture_that_moves_nothing_shows_nothing() -> None:
    """A model that is blind passes no check that holds a picture against it."""
    model, processor = FAMILIES["llava"]()
    vlm = VLM(model, processor)
    with torch.no_grad():
        for weight in vlm.layout.module(model, "projector").parameters():
            weight.zero_()
    proof = prove(vlm)
    assert {name: proof.checks[name].state for name in ("pixels", "image_tokens", "through")} == {
        "pixels": "not shown",
        "image_tokens": "not shown",
        "through": "not shown",
    }
    assert "moves the reference by 0, less than 20 times the bound of 0.0001" in proof.tools["vcd"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision_is_allowed_what_another_kernel_rounds(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = asked("llava", dtype)
    implementation = vlm.model.config.get_text_config()._attn_implementation
    assert 0 <= Checks(vlm, made_up()).rounding() < {"float32": 1e-5, "bfloat16": MOST}[dtype]
    assert vlm.model.config.get_text_config()._attn_implementation == implementation
    for rounding, bound in ((0.03, 0.06), (0.4, MOST), (0.0, LOGITS[vlm.dtype])):
        monkeypatch.setattr(Checks, "rounding", lambda self, found=rounding: found)
        assert Checks(vlm, made_up()).bound == pytest.approx(LOGITS[vlm.dtype] if dtype == "float32" else bound)


def test_a_model_of_unknown_types_is_checked_when_it_is_read(monkeypatch, capsys) -> None:
    vlm = asked("llava")
    check_unknown(vlm)
    assert not vlm.refused  # the table has a row for it, and nothing was run
    monkeypatch.setattr("interp.proof.row_of", lambda model: None)
    monkeypatch.setattr(
        "interp.proof.prove", lambda vlm, checks: Proof("x", "float32", {}, {"lens": "lens: off by 3", "score": ""})
    )
    check_unknown(vlm)
    assert vlm.refused == {"lens": "lens: off by 3"}
    assert "warning: lens is refused on llava: lens: off by 3" in capsys.readouterr().err
    with pytest.raises(UserError, match="lens on llava would be wrong: lens: off by 3; task=prove shows"):
        logit_lens(vlm, [Prompt("Is it?", picture())])


def test_what_the_table_refuses_is_refused_when_it_is_read(capsys) -> None:
    vlm = VLM(*build("gemma4"), name="gemma4")  # inputs by layer carry the picture past the residual stream
    check_unknown(vlm)
    assert set(vlm.refused) == {"patch", "sublayers", "direct_attribution"}
    assert "warning: patch is refused on gemma4: through: patched states do not carry" in capsys.readouterr().err
    with pytest.raises(UserError, match="patch on gemma4 would be wrong: through: patched states"):
        patch(vlm, [Prompt("Is it?", picture(0))], [Prompt("Is it?", picture(1))], places=("verdict",))


def test_a_failed_quick_check_refuses_what_rests_on_it() -> None:
    vlm = asked("llava")
    vlm.layout = WRONG["other norm"](vlm)
    tools = prove(vlm, checks=QUICK).tools
    assert {tool for tool, why in tools.items() if why} == {
        *("residuals", "lens", "patch", "sublayers", "heads", "direct_attribution", "record", "knockout")
    }
    assert "final norm does not take" in tools["patch"]


def test_a_batch_of_which_scores_are_refused_is_refused_whole() -> None:
    vlm = asked("llava")
    vlm.refused = {"score": "score: off by 1", "vcd": "score: off by 1"}
    prompts = [Prompt("Is it?", picture()), Prompt("Is this safe?", picture())]
    assert vlm.generate(prompts[:1], max_new_tokens=1).texts
    with pytest.raises(UserError, match=r"several prompts of llava at once would be wrong: .* ask one \(batch_size=1"):
        vlm.generate(prompts, max_new_tokens=1)
    for tool in (lambda: vlm.score(prompts[:1]), lambda: VCD().generate(vlm, prompts[:1], max_new_tokens=1)):
        with pytest.raises(UserError, match="on llava would be wrong: score: off by 1"):
            tool()


def test_other_prompts_than_two_with_pictures_are_refused() -> None:
    with pytest.raises(UserError, match="two prompts with pictures and questions of different lengths"):
        prove(asked("llava"), [Prompt("a"), Prompt("b")])
