"""``prove`` passes what is right, and catches wrong layouts, kernels and tools: five families, float32 and bfloat16."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from interp import selfcheck
from interp.attention import record as attention
from interp.attention.check import made_up
from interp.errors import UserError
from interp.loading import refuse_untrusted
from interp.module_map import ModuleMap
from interp.reference import BOUNDS, MOST, Reference, float32_copy
from interp.selfcheck import CHECKS, QUICK, TOOLS, Check, SelfCheck, prove
from interp.tools.lens import logit_lens
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from mitigation.vcd import VCD
from tests.families import FAMILIES
from tests.plain_model import plain_afterwards
from tests.read_families import build
from tests.tiny import picture

FIVE = ("llava", "qwen2_5_vl", "gemma3", "idefics3", "internvl")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
INSIDE = (*QUICK, "heads")
PROMPT = Prompt("Is it?", picture())


def model(name: str, dtype: str = "float32", *, deaf: bool = False) -> VLM:
    """A small model; a ``deaf`` one has the same margin for every picture and question."""
    built, processor = FAMILIES[name]()
    vlm = VLM(built.to(DTYPES[dtype]), processor, name=name)
    if deaf:
        tokens = [token for ids in vlm.answer_ids for token in ids]
        with torch.no_grad():
            built.get_output_embeddings().weight[tokens] = 0
            for layer in vlm.module_map.module(built, "layers"):  # gains as if trained
                for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                    norm.weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(0))
    return vlm


def refused(result: SelfCheck) -> set[str]:
    return {tool for tool, why in result.tools.items() if why}


def shortened(vlm: VLM, first: int, last: int | None) -> ModuleMap:
    layers = list(vlm.module_map.module(vlm.model, "layers"))[first:last]
    vlm.model.shortened = torch.nn.ModuleList(layers)
    blocks = {i - first: vlm.module_map.blocks[i] for i in range(first, first + len(layers))}
    return replace(vlm.module_map, layers="shortened", blocks=blocks)


def of_all(vlm: VLM, **changes: str) -> ModuleMap:
    return replace(vlm.module_map, blocks={i: replace(block, **changes) for i, block in vlm.module_map.blocks.items()})


def vision_tower(vlm: VLM) -> ModuleMap:
    tower = vlm.module_map.module(vlm.model, "vision_tower")
    inner = next(n for n, m in tower.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1)
    return replace(vlm.module_map, layers=f"{vlm.module_map.vision_tower}.{inner}")


def other_head(vlm: VLM) -> ModuleMap:
    """A head of the same shape, with other weights."""
    head = vlm.module_map.module(vlm.model, "lm_head")
    vlm.model.other_head = torch.nn.Linear(head.in_features, head.out_features, bias=False).to(head.weight.dtype)
    return replace(vlm.module_map, lm_head="other_head")


def other_token(vlm: VLM) -> ModuleMap:
    vlm.model.config.other_token = vlm.tokenizer.eos_token_id
    return replace(vlm.module_map, image_token="other_token")


WRONG: dict[str, Callable[[VLM], ModuleMap]] = {
    "first layer missing": lambda vlm: shortened(vlm, 1, None),
    "last layer missing": lambda vlm: shortened(vlm, 0, -1),
    "vision tower": vision_tower,
    "other head": other_head,
    "other norm": lambda vlm: replace(vlm.module_map, final_norm=f"{vlm.module_map.layers}.0.input_layernorm"),
    "other image token": other_token,
    "head sum is q_proj": lambda vlm: of_all(vlm, heads_out="self_attn.q_proj"),
    "MLP is its norm": lambda vlm: of_all(vlm, mlp="post_attention_layernorm"),
    "1d for M-RoPE": lambda vlm: replace(vlm.module_map, position_kind="1d"),
}
BOTH = [
    pytest.param(name, dtype, marks=[] if (name, dtype) == ("llava", "float32") else pytest.mark.slow)
    for name in FIVE
    for dtype in DTYPES
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("name", "dtype"), BOTH)
def test_a_wrong_layout_is_caught(name: str, dtype: str, wrong: str) -> None:
    """Also by a model whose margin ignores the picture, and with gains of norms as training leaves them."""
    if wrong == "1d for M-RoPE" and not name.startswith("qwen"):
        return
    vlm = model(name, dtype, deaf=True)
    vlm.module_map = WRONG[wrong](vlm)
    assert [check for check, found in prove(vlm, checks=INSIDE).checks.items() if found.state == "failed"]


@pytest.mark.parametrize(("name", "dtype"), BOTH)
def test_a_right_model_passes_and_stays_as_it_is(name: str, dtype: str) -> None:
    """Its margin ignores the picture."""
    vlm = model(name, dtype, deaf=True)
    assert vlm.score([PROMPT]).abs() < 1e-6
    with plain_afterwards(vlm):
        result = prove(vlm)
    states = {check: found.state for check, found in result.checks.items()}
    if dtype == "bfloat16":  # where small effects of a picture are under 20 times the rounding
        states |= {name: "passed" for name in ("pixels", "through", "conversation") if states[name] == "not shown"}
    else:
        assert result.tools == dict.fromkeys(TOOLS, "")
    assert states == dict.fromkeys(CHECKS, "passed"), result
    lines = str(result).splitlines()
    assert lines[0] == f"{name} in {dtype}"
    assert [line.split()[:2] for line in lines if line.startswith("kernel")] == [["kernel", "passed"]]


def test_a_failed_check_refuses_the_tools_that_need_it() -> None:
    vlm = model("llava", deaf=True)
    vlm.module_map = WRONG["other norm"](vlm)
    result = prove(vlm)
    assert refused(result) == {"lens", "direct_attribution"}
    assert "lens: the lens has other logits than plain forwards (off by" in result.tools["lens"]


def test_a_picture_that_moves_nothing_shows_nothing() -> None:
    """A model that is blind passes no check that holds a picture against it."""
    vlm = model("llava")
    with torch.no_grad():
        for weight in vlm.module_map.module(vlm.model, "projector").parameters():
            weight.zero_()
    result = prove(vlm)
    assert {name for name, check in result.checks.items() if check.state == "not shown"} == {
        *("pixels", "image_tokens", "through", "conversation")
    }
    assert "moves the reference by 0, less than 20 times the bound of 0.0001" in result.tools["vcd"]


def test_a_family_of_one_picture_or_turn_says_so() -> None:
    for name, limit in (("instructblip", "takes one there"), ("llava_next", "it takes fewer turns")):
        vlm = VLM(*FAMILIES[name](), name=name)
        result = prove(vlm, checks=("conversation",))
        assert result.checks["conversation"].state == "not applicable"
        assert limit in result.checks["conversation"].why
        assert "conversation" not in result.tools


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "mllama"])
def test_two_pictures_and_two_turns_are_checked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = model(name)
    assert prove(vlm, checks=("conversation",)).checks["conversation"].state == "passed"
    alone, plain = [vlm.score([chat]) for chat in Reference(vlm, made_up()).chats], VLM.score
    assert alone[0] != alone[1]

    def unpadded(self: VLM, prompts: Any, **options: Any) -> torch.Tensor:
        return plain(self, list(prompts)[::-1], **options)

    with monkeypatch.context() as patched:
        patched.setattr(VLM, "score", unpadded)
        result = prove(vlm, checks=("conversation",))
    assert result.tools["conversation"].startswith("a batch of conversations has other logits than each")
    encode = vlm.encode
    dark = partial(Image.new, "RGB", (336, 336))
    vlm.encode = lambda prompts, **options: encode(  # type: ignore[method-assign]
        [prompt.with_images(lambda _: dark(), only=range(2, 1 + len(prompt.images))) for prompt in prompts], **options
    )
    result = prove(vlm, checks=("conversation",))
    assert result.checks["conversation"].state == "not shown", result
    assert "a black picture 2 moves the reference by 0" in result.checks["conversation"].why


def scaled(name: str, factor: float) -> Callable[..., Any]:
    function = getattr(F, name)
    return lambda *args, **options: function(*args, **options) * factor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "factor"), [("scaled_dot_product_attention", 1.05), ("linear", 1.02)])
def test_a_wrong_kernel_is_found(name: str, factor: float, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of a comparison of forwards would use it."""
    vlm = model("llava", dtype)
    monkeypatch.setattr(F, name, scaled(name, factor))
    result = prove(vlm, checks=("kernel", "score", "heads"))
    assert result.checks["score"].state == "passed"
    assert refused(result) >= {"heads", "score"} if dtype == "float32" or name == "linear" else {"heads"}


def test_another_device_is_compared_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is in float32, has other memory, and carries no hooks of placement."""
    vlm = model("llava", "bfloat16")
    copied = float32_copy(vlm.model)
    assert {weight.dtype for weight in copied.parameters()} == {torch.float32}
    assert not {w.data_ptr() for w in copied.parameters()} & {w.data_ptr() for w in vlm.model.parameters()}
    with torch.no_grad():
        vlm.module_map.module(vlm.model, "layers")[0].input_layernorm.register_forward_hook(lambda m, a, out: out * 1.5)
    assert "eager attention in float32 on the CPU gives other logits" not in prove(vlm, checks=("kernel",)).checks
    monkeypatch.setattr("interp.reference.free_memory", lambda device: 1000)
    assert float32_copy(vlm.model) is None
    assert "no room for a copy on the CPU" in prove(vlm, checks=("kernel",)).properties["kernel"]


DEAF_TOOLS = {
    "score": lambda vlm, margins: (vlm, "score", lambda *a, metric, **k: metric(margins["score"])),
    "lens": lambda vlm, margins: (selfcheck, "logit_lens", lambda *a, metric, **k: metric(margins["score"])),
}


@pytest.mark.parametrize("tool", DEAF_TOOLS)
def test_a_tool_that_ignores_an_open_edit_is_found(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives what it gave before the edit, as from a cache."""
    vlm = model("llava")
    logits = {"score": Reference(vlm, made_up()).single[0]}
    monkeypatch.setattr(*DEAF_TOOLS[tool](vlm, logits))
    result = prove(vlm)
    assert "has other logits than plain forwards under an open edit" in result.tools[tool]


def test_a_prefill_that_ignores_an_open_edit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp.prefill_cache.hooked", lambda *a, **k: False)
    assert "under an open edit" in prove(model("llava"), checks=("generate",)).checks["generate"].why


def test_wrong_masses_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = attention._kernel_mass
    monkeypatch.setattr(attention, "_kernel_mass", lambda *inputs: honest(*inputs) * 0.999)
    assert refused(prove(model("llava"))) == {"record", "knockout"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision_is_allowed_what_another_kernel_rounds(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = model("llava", dtype)
    assert Reference(vlm, made_up()).bound < MOST
    least = BOUNDS[vlm.dtype]
    for rounding, bound in ((0.03, 0.06), (0.4, MOST), (0.0, least)):
        errors = iter((0.0, rounding))  # of one prompt twice in a batch, and of eager attention
        monkeypatch.setattr("interp.reference.relative_error", lambda one, other, errors=errors: next(errors))
        assert Reference(vlm, made_up()).bound == pytest.approx(least if dtype == "float32" else bound)


def test_a_model_of_unknown_types_is_checked_when_it_is_read(monkeypatch, capsys) -> None:
    vlm = model("llava")
    failing = SelfCheck("x", "float32", {"lens": Check("failed")}, {"lens": "lens: off by 3", "score": ""})
    monkeypatch.setattr("interp.loading.prove", lambda vlm, checks: failing)
    refuse_untrusted(vlm)
    assert not vlm.refused  # the table has a row for it, and nothing was run
    monkeypatch.setattr("interp.loading.types_of", lambda model: [])
    refuse_untrusted(vlm)
    assert vlm.refused == {"lens": "lens: off by 3"}
    assert "warning: lens is refused on llava: lens: off by 3" in capsys.readouterr().err
    with pytest.raises(UserError, match="lens on llava would be wrong: lens: off by 3; task=prove shows"):
        logit_lens(vlm, [PROMPT])


def test_a_model_that_fails_on_conversations_is_asked_none(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm, plain = model("llava"), VLM.score
    chats = Reference(vlm, made_up()).chats
    monkeypatch.setattr("interp.loading.types_of", lambda model: [])
    refuse_untrusted(vlm)
    assert "conversation" not in vlm.refused
    with monkeypatch.context() as patched:
        patched.setattr(VLM, "score", lambda self, prompts, **options: plain(self, list(prompts)[::-1], **options))
        refuse_untrusted(vlm)
    with pytest.raises(UserError, match="conversation on llava would be wrong: a batch of conversations has other log"):
        vlm.generate(chats[:1], max_new_tokens=1)
    vlm.refused = {"conversation": vlm.refused["conversation"]}
    with pytest.raises(UserError, match="conversation on llava would be wrong"):
        patch(vlm, chats[:1], chats[1:], places=("verdict",))
    assert vlm.generate([PROMPT], max_new_tokens=1).texts


def test_what_the_table_refuses_is_refused_when_it_is_read(capsys) -> None:
    vlm = VLM(*build("gemma4"), name="gemma4")  # inputs by layer carry the picture past the residual stream
    refuse_untrusted(vlm)
    assert set(vlm.refused) == {"patch", "sublayers", "direct_attribution"}
    assert "warning: patch is refused on gemma4: through: patched states do not carry" in capsys.readouterr().err
    with pytest.raises(UserError, match="patch on gemma4 would be wrong: through: patched states"):
        patch(vlm, [PROMPT], [Prompt("Is it?", picture(1))], places=("verdict",))


def test_a_batch_is_refused_if_scores_are() -> None:
    vlm = model("llava")
    vlm.refused = {"score": "score: off by 1", "vcd": "score: off by 1"}
    prompts = [PROMPT, Prompt("Is this safe?", picture())]
    assert vlm.generate(prompts[:1], max_new_tokens=1).texts
    with pytest.raises(UserError, match=r"several prompts of llava at once would be wrong: .* ask one \(batch_size=1"):
        vlm.generate(prompts, max_new_tokens=1)
    for tool in (lambda: vlm.score(prompts[:1]), lambda: VCD().generate(vlm, prompts[:1], max_new_tokens=1)):
        with pytest.raises(UserError, match="on llava would be wrong: score: off by 1"):
            tool()
