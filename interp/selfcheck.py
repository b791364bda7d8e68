"""The self-check: ``prove(vlm)`` compares what the tools rest on with plain forwards, and says which tools to trust.

Whole logits of the last column are compared, not only margins: the margin of a model that is studied here may ignore
the picture. ``TOOLS`` names the checks that each tool needs. A tool is refused if one of them fails, or if its
effect is too small to show anything.

Two references are not this project's code. ``card`` takes the inputs that the model card's lines make. ``kernel``
computes the model again with other kernels: on the CPU, in float32, with eager attention.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from interp.attention.check import check_recorder, made_up
from interp.errors import UserError
from interp.generation import pixel_inputs
from interp.hooks.attention import AttentionCall, intercept
from interp.hooks.residual import LayerStates, edit_residual, last_layer
from interp.module_map import switched
from interp.prefill_cache import PrefillCache
from interp.prompt import Prompt
from interp.reference import BOUNDS, MOST, Reference, float32_copy, products
from interp.scaling import FITS, picture_ends, relative_error, sublayer_factor
from interp.tools.lens import logit_lens

if TYPE_CHECKING:
    from interp.vlm import VLM

TIMES = 20  # the bound: the least effect that shows something

QUICK = ("score", "image_tokens", "edit", "lens", "additive", "through")
CHECKS = ("card", "kernel", "generate", "pixels", "heads", "recorder", "conversation", *QUICK)
TOOLS: Mapping[str, tuple[str, ...]] = {
    "baseline": ("kernel", "card"),
    "score": ("kernel", "score"),
    "vcd": ("kernel", "generate", "pixels", "score"),
    "segments": ("image_tokens",),
    "residuals": ("kernel", "edit"),
    "lens": ("kernel", "edit", "lens"),
    "patch": ("kernel", "score", "edit", "through"),
    "sublayers": ("kernel", "edit", "additive"),
    "heads": ("kernel", "edit", "heads"),
    "direct_attribution": ("kernel", "score", "lens", "additive", "heads"),
    "record": ("kernel", "image_tokens", "heads", "recorder"),
    "knockout": ("kernel", "image_tokens", "heads", "recorder"),
}


@dataclass(frozen=True)
class Check:
    """One check. ``error`` is relative and ``bound`` its limit; ``why`` says what is wrong if it did not pass.

    ``state`` is "passed", "failed", "not shown" or "not applicable".
    """

    state: str
    error: float | None = None
    bound: float | None = None
    why: str = ""


@dataclass(frozen=True)
class SelfCheck:
    """Results by name: ``checks``, ``tools`` ("" or why one is refused), ``properties`` that limit a tool."""

    model: str
    dtype: str
    checks: Mapping[str, Check]
    tools: Mapping[str, str]
    properties: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        row = "{:<18}  {:<14}  {:<7}  {:<7}  {}".format
        lines = [f"{self.model} in {self.dtype}", "", row("check", "", "error", "bound", "")]
        for name, check in self.checks.items():
            numbers = ("" if value is None else f"{value:.1e}" for value in (check.error, check.bound))
            lines.append(row(name, check.state, *numbers, check.why))
        lines += ["", "tool"]
        lines += [row(name, "refused" if why else "works", "", "", why) for name, why in self.tools.items()]
        lines += [row(name, "property", "", "", text) for name, text in self.properties.items()]
        return "\n".join(line.rstrip() for line in lines)


def prove(vlm: "VLM", prompts: Sequence[Prompt] | None = None, *, checks: Sequence[str] = CHECKS) -> SelfCheck:
    """Check ``vlm`` on two prompts with pictures (default: made up), in about 60 forwards.

    With fewer ``checks`` only the tools that need no others are listed. ``kernel`` needs memory for a float32 copy of
    the model on the CPU; the others need memory for an eager forward.

    Raises:
        UserError: not two prompts with pictures of one size each and questions of different lengths.
    """
    prompts = made_up() if prompts is None else list(prompts)
    if len(prompts) != 2 or any(prompt.image is None for prompt in prompts) or prompts[0].text == prompts[1].text:
        raise UserError("prove takes two prompts with pictures and questions of different lengths; leave them out")
    run = _Checks(vlm, prompts)
    made = {name: run.check(name) for name in checks}
    tools = {}
    for tool, needs in TOOLS.items():
        failed = [name for name in needs if name in made and made[name].state in ("failed", "not shown")]
        if failed or set(needs) <= set(made):
            tools[tool] = f"{failed[0]}: {made[failed[0]].why}" if failed else ""
    tools |= {name: each.why for name, each in made.items() if name == "conversation" and each.state == "failed"}
    if vlm.thinks:
        run.properties["thinks"], tools["thought"] = vlm.thoughts.told_apart(vlm.render(prompts[0]))
    return SelfCheck(vlm.name, str(vlm.dtype).removeprefix("torch."), made, tools, run.properties)


class _Stop(Exception):
    """Ends a check: its state, and why."""


class _Checks(Reference):
    """The checks of one model, one method each."""

    def __init__(self, vlm: "VLM", prompts: list[Prompt]) -> None:
        super().__init__(vlm, prompts)
        self.properties: dict[str, str] = {}
        self.worst: tuple[float | None, float | None] = None, None  # error and bound of the check that runs

    def check(self, name: str) -> Check:
        """Make one check. An error that a model's code raises is its result."""
        self.worst = None, None
        try:
            getattr(self, "_" + name)()
        except _Stop as stop:
            return Check(stop.args[0], *self.worst, stop.args[1])
        except Exception as error:
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            return Check("failed", *self.worst, kind + str(error).partition("\n")[0][:200])
        return Check("passed", *self.worst)

    def within(self, error: float, bound: float, why: str) -> None:
        """Compare an error with its bound, and note the worst."""
        if self.worst[0] is None or not error / bound <= self.worst[0] / self.worst[1]:  # type: ignore[operator]
            self.worst = error, bound
        if not error <= bound:
            raise _Stop("failed", f"{why} (off by {error:.2g})")

    def shows(self, effect: float, what: str = "another picture") -> None:
        """Check that ``effect`` is large against the noted bound: the least of the type if the error is under it."""
        (error, bound), least = (value or 0.0 for value in self.worst), BOUNDS[self.vlm.dtype]
        bound = min(bound, least) if error <= least else bound
        if effect < TIMES * bound:
            why = f"{what} moves the reference by {effect:.2g}, less than {TIMES} times the bound of {bound:.2g}"
            raise _Stop("not shown", why + "; try model.dtype=float32" * (self.vlm.dtype != torch.float32))

    def follows(self, tool: str, ask: Callable[[Callable[[Tensor], Tensor]], object]) -> None:
        """Compare the logits that a tool sees with plain forwards, without and with an open edit."""
        blocks: tuple[AbstractContextManager[None], ...] = (nullcontext(), self.edited())
        hows = ("", " under an open edit")
        for block, reference, how in zip(blocks, self.single, hows, strict=True):
            rows: list[Tensor] = []

            def metric(logits: Tensor, rows: list[Tensor] = rows) -> Tensor:
                rows.append(logits.float().cpu())
                return logits[:, 0]

            with block:
                ask(metric)
            error = relative_error(torch.cat(rows), reference)
            self.within(error, self.bound, f"{tool} has other logits than plain forwards{how}")

    def _card(self) -> None:
        """The inputs are the same as the model card's lines make."""
        vlm, processor, prompt = self.vlm, self.vlm.processor, self.prompts[0]
        options: dict[str, Any] = {"return_tensors": "pt"}
        ours, text = vlm.encode([prompt]), vlm.render(prompt)
        if vlm.module_map.prompt == "pieces":  # IDEFICS' processor adds the placeholder and its frame
            before, after = re.split("(?:<fake_token_around_image>)?<image>(?:<fake_token_around_image>)?", text)
            pieces = [before.removeprefix(vlm.tokenizer.bos_token), prompt.image, after]
            theirs = processor(text=[pieces], add_end_of_utterance_token=False, **options)
        else:
            parts = [{"type": "image", "image": prompt.image}, {"type": "text", "text": prompt.text}]
            options |= {"tokenize": True, "return_dict": True, "add_generation_prompt": True}
            try:
                theirs = processor.apply_chat_template([{"role": "user", "content": parts}], **options)
                assert "input_ids" in theirs
            except Exception:  # a processor that takes no chats, as InstructBLIP's
                theirs = processor(text=[text], images=[prompt.image], return_tensors="pt")
        for name in ("input_ids", *pixel_inputs(ours)):
            if not torch.equal(theirs[name].to(ours[name]), ours[name]):
                raise _Stop("failed", f"the model card's lines give other {name}")

    def _kernel(self) -> None:
        """Linear maps give their products; the CPU in float32 with eager attention gives the same logits."""
        encoded, exact, model = self.vlm.encode(self.prompts[:1]), self.vlm.dtype == torch.float32, self.model

        def compare(name: str, output: Tensor, product: Tensor) -> None:
            self.within(relative_error(output.cpu(), product), BOUNDS[output.dtype], f"{name} gives another product")

        with products(model, compare):
            self.logits(encoded)
        if not exact or self.vlm.device.type != "cpu":
            model = float32_copy(model)
        if model is None:
            self.properties["kernel"] = "no room for a copy on the CPU: only linear maps were computed again"
            return
        inputs = {k: v.to("cpu", torch.float32 if v.is_floating_point() else v.dtype) for k, v in encoded.items()}
        with torch.no_grad(), switched(model, "eager"):
            logits = model(**inputs, use_cache=False).logits[:, -1]
        bound, why = BOUNDS[torch.float32] if exact else 2 * MOST, "eager attention in float32 on the CPU gives"
        self.within(relative_error(self.single[0][:1], logits), bound, f"{why} other logits")

    def _score(self) -> None:
        """``score`` of a padded batch has the logits of each prompt."""
        self.follows("score", lambda metric: self.vlm.score(self.prompts, encoded=self.both[0], metric=metric))

    def _generate(self) -> None:
        """The first scores of ``generate`` are the logits of each prompt, also with a prefill cache."""

        def ask(metric: Callable[[Tensor], Tensor]) -> None:
            keep = type("Keep", (LogitsProcessor,), {"__call__": lambda self, ids, x: metric(x) is None or x})()
            self.vlm.generate(self.prompts, encoded=self.both[0], max_new_tokens=1, logits_processor=[keep])

        cache = self.vlm.prefill_cache
        with PrefillCache().used_by(self.vlm):
            self.follows("generate", ask)
        self.vlm.prefill_cache = cache

    def _lens(self) -> None:
        """The lens at the last layer has the model's logits."""
        ask = partial(logit_lens, self.vlm, self.prompts, layers=[last_layer(self.vlm)])
        self.follows("the lens", lambda metric: ask(metric=metric))

    def _pixels(self) -> None:
        """Every input with pixels changes with the picture, which moves the logits."""
        same = [name for name in pixel_inputs(self.both[0]) if torch.equal(self.both[0][name], self.both[1][name])]
        if same:
            raise _Stop("failed", f"{', '.join(same)} stay the same under another picture")
        self.within(relative_error(self.each(self.prompts), self.single[0]), self.bound, "two forwards differ")
        self.shows(relative_error(self.each(self.others), self.single[0]))

    def _conversation(self) -> None:
        """A padded batch of two pictures and two turns has the logits of each; every part moves them."""
        seen: dict[str, Tensor] = {}
        try:
            self.vlm.score(self.chats, metric=lambda logits: seen.setdefault("batch", logits)[:, 0])
        except UserError as error:
            raise _Stop("not applicable", str(error)) from error
        alone = self.each(self.chats)
        self.within(
            relative_error(seen["batch"], alone), self.bound, "a batch of conversations has other logits than each"
        )
        for what, chats in self.other_chats.items():
            self.shows(relative_error(self.each(chats), alone), what)

    def _image_tokens(self) -> None:
        """The columns of the first layer's input that change with the picture are image tokens."""
        module_map = self.vlm.module_map
        if module_map.cross_attended:
            raise _Stop("not applicable", "pictures are read by cross-attention")
        image_token, first = module_map.image_token_id(self.model.config), module_map.module(self.model, "layers")[0]
        x, y = (self.states(encoded, {0: first})["into", 0].float() for encoded in self.both)
        image = (self.both[0]["input_ids"] == image_token) & self.both[0]["attention_mask"].bool()
        moved = ((x - y).norm(dim=-1) > 1e-6 * x.norm(dim=-1)).to(image.device)
        if wrong := int((moved & ~image).sum()):
            raise _Stop("failed", f"{wrong} columns change with the picture and are no image tokens")
        if not bool(moved.any(1).all()):
            raise _Stop("not shown", "no column changes with the picture")

    def _edit(self) -> None:
        """An edit of a layer moves the logits, and is undone."""
        self.within(relative_error(self.each(self.prompts), self.single[0]), self.bound, "an edit is not undone")
        self.shows(relative_error(self.single[1], self.single[0]), "an edit of the first layer")

    def _through(self) -> None:
        """All states after the last addition of a picture, put in another prompt's place, give its logits."""
        vlm, states, other = self.vlm, dict[int, Tensor](), self.vlm.encode(self.others[:1])
        if vlm.module_map.cross_attended:
            self.properties["crossing"] = "pictures are read by cross-attention, which patches and cuts leave open"
            raise _Stop("not applicable", "pictures are read by cross-attention")
        if ends := picture_ends(self.model, vlm.module_map, lambda: self.logits(other)):
            early = "the picture is added again in early layers (DeepStack): patching an image token means something"
            self.properties["deepstack"] = f"{early} from residual layer {ends} on"

        def keep(here: LayerStates) -> None:
            states[here.layer] = here.hidden

        for layer in {ends, last_layer(vlm)}:
            with edit_residual(vlm, keep, layers=[layer]):
                there = self.logits(other)
            with edit_residual(vlm, lambda here: states[here.layer], layers=[layer]):
                patched = self.logits(vlm.encode(self.prompts[:1]))
            self.within(relative_error(patched, there), self.bound, "patched states do not carry the other picture")
        self.shows(relative_error(self.single[0][:1], there))

    def _additive(self) -> None:
        """Each layer's output is its input and what its sublayers add."""
        module_map, factor = self.vlm.module_map, sublayer_factor(self.model)
        kinds: tuple[Any, ...] = ("attention", "mixer", "mlp")
        parts = {(kind, i): part for kind in kinds for i, part in module_map.sublayers(self.model, kind).items()}
        layers = {("layer", i): layer for i, layer in enumerate(module_map.module(self.model, "layers"))}
        seen = self.states(self.vlm.encode(self.prompts[:1]), parts | layers)
        for i in module_map.blocks:
            total = seen["into", ("layer", i)].float()
            for key in (key for key in parts if key[1] == i):
                total = total + factor * seen["out", key].reshape(total.shape).to(total.device)
            error, why = relative_error(total, seen["out", ("layer", i)]), "is not its input, attention and MLP"
            self.within(error, FITS[self.vlm.dtype], f"layer {i} {why}")

    def _heads(self) -> None:
        """Attention weights times values are what the map that adds up the heads takes, or a gate times them."""
        module_map, bound, outs = self.vlm.module_map, BOUNDS[self.vlm.dtype], dict[int, Tensor]()

        def see(call: AttentionCall) -> None:
            value = call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], 1).float()
            outs[call.layer] = (call.rows() @ value).transpose(1, 2)

        sums = module_map.head_sums(self.model)
        if not sums or set(sums) != set(module_map.attentions(self.model)):
            raise _Stop("failed", "no attention, or heads that no linear map adds up")
        if missing := [i for i, block in module_map.blocks.items() if not block.attention]:
            text = "have no attention and carry the picture past every cut edge: knockout gives a lower bound"
            self.properties["hybrid"] = f"layers {missing} {text}"
        with intercept(self.vlm, observe=see):
            seen = self.states(self.vlm.encode(self.prompts[:1]), sums)
        for i, out in outs.items():
            into = seen["into", i].reshape(out.shape).float()
            gate = (into / out)[out.abs() > 1e-2 * out.abs().max()]
            if gate.min() > -1e-2 and gate.max() < 1 + 1e-2 and gate.std() > 0.05:
                self.properties["gated"] = f"heads (up to layer {i}) are gated before they are added up"
            else:
                self.within(relative_error(into, out), bound, f"what layer {i} adds up is not what its heads read")

    def _recorder(self) -> None:
        """Attention that is recorded is eager attention, and recording changes no logit."""
        result = check_recorder(self.vlm, self.prompts)
        self.within(result.mass_error, result.tolerance, "masses differ")
