"""The checks of ``interp.proof``: each compares what a tool rests on with plain forwards of the model."""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from transformers import LogitsProcessor

from interp.errors import UserError
from interp.generation import new_tokens
from interp.hooks.attention import AttentionCall, intercept
from interp.measured_numbers import FITS, AfterHead, fitted, is_gated, measured, off, pixel_inputs
from interp.prompt import Prompt, inverted
from interp.trace import switched

if TYPE_CHECKING:
    from interp.vlm import VLM

State = Literal["passed", "failed", "not shown"]
TIMES = 20
LOGITS = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Least bounds of checks across forwards; a multiple of the model's own noise where that is more."""
NOISES = 4.0  # of one prompt twice in a batch
KERNELS = 2.0  # of eager attention for one prompt, in half precision: it rounds otherwise, and nothing is padded
MOST = 0.1  # of the bound that this gives: eager attention may differ by more than rounding
SAME = 1e-6  # of columns that no picture reaches: their numbers are the same to the bit
TOKENS = 4  # of the greedy answer

RESTS_ON: Mapping[str, tuple[str, ...]] = {
    "card": (),
    "score": (),
    "generate": (),
    "pixels": (),
    "image_tokens": (),
    "chain": (),
    "lens": ("chain",),
    "additive": ("chain",),
    "heads": ("chain",),
    "recorder": ("chain", "heads"),
    "complete": ("image_tokens", "recorder"),
    "through": ("chain", "score"),
}


@dataclass(frozen=True)
class Check:
    """One check: ``number`` is how far it is off and ``bound`` how far it may be, ``effect`` what it is held against.

    ``why`` says what was found where it did not pass.
    """

    state: State
    number: float | None = None
    bound: float | None = None
    effect: float | None = None
    why: str = ""


class _Kept(LogitsProcessor):
    """Notes the scores that it sees, and changes none."""

    def __init__(self, kept: list[Tensor]) -> None:
        self._kept = kept

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores as they are."""
        self._kept.append(scores.float().cpu())
        return scores


class _NotShown(Exception):
    """A check that could not be made, with the reason."""


def _first(value: Any) -> Tensor:
    return _first(value[0]) if isinstance(value, tuple | list) else value


class Checks:
    """One proof under way: ``check`` makes a check and notes it in ``done``."""

    def __init__(self, vlm: "VLM", prompts: list[Prompt]) -> None:
        self.vlm, self.prompts = vlm, prompts
        self.others = [inverted(one) for one in prompts]
        self.done: dict[str, Check] = {}
        self.properties: dict[str, str] = {}
        self.forwards = 0
        self.exact = FITS[vlm.dtype]  # bound of checks within one forward, relative to what is compared
        self.added = 0  # decoder layers behind which the picture is added again

    def counted(self) -> ExitStack:
        """Counts the forwards of the module with the head while open."""

        def count(module: Any, args: Any) -> None:
            self.forwards += 1

        stack = ExitStack()
        stack.callback(self.vlm.speaker.register_forward_pre_hook(count).remove)
        return stack

    def refuses(self, name: str) -> bool:
        return name not in self.done or self.done[name].state != "passed"

    def why(self, name: str) -> str:
        return self.done[name].why or self.done[name].state

    def check(self, name: str) -> None:
        """Makes one check, unless it rests on one that did not pass."""
        below = [other for other in RESTS_ON[name] if other in self.done and self.refuses(other)]
        if below:
            self.done[name] = Check("not shown", why=f"rests on {below[0]}")
            return
        try:
            self.done[name] = getattr(self, "_" + name)()
        except _NotShown as reason:
            self.done[name] = Check("not shown", why=str(reason))
        except Exception as error:  # whatever a model's own code raises is the finding
            text = str(error).splitlines()[0][:200] if str(error) else ""
            self.done[name] = Check(
                "failed", why=text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
            )

    def compare(self, number: float, bound: float, why: str, effect: float | None = None) -> Check:
        """The finding of a comparison; not shown where ``effect``, what it is held against, is too small.

        What keeps the least bound of its type is held to that one: a wider one is for what rounds more.
        """
        if not number <= bound:
            return Check("failed", number, bound, effect, f"{why} (off by {number:.2g})")
        least = LOGITS[self.vlm.dtype]
        kept = min(least, bound) if number <= least else bound
        if effect is not None and effect < TIMES * kept:
            out = "" if self.vlm.dtype == torch.float32 else "; prove it with model.dtype=float32, which rounds less"
            why = (
                f"another picture moves the reference by {effect:.2g}, less than {TIMES} times the bound of {kept:.2g}"
            )
            return Check("not shown", number, bound, effect, why + out)
        return Check("passed", number, bound, effect)

    # what the checks compare with

    def logits(self, encoded: Mapping[str, Any]) -> Tensor:
        """The last column's logits by one plain forward, float32 on the CPU."""
        with torch.no_grad():
            return self.vlm.model(**encoded, use_cache=False).logits[:, -1].float().cpu()

    def each(self, prompts: list[Prompt]) -> Tensor:
        """The logits of each prompt, asked alone."""
        return torch.cat([self.logits(self.vlm.encode([one])) for one in prompts])

    @cached_property
    def alone(self) -> Tensor:
        """Those of the two prompts."""
        return self.each(self.prompts)

    @cached_property
    def bound(self) -> float:
        """How far logits of two forwards may be apart."""
        twice = self.logits(self.vlm.encode([self.prompts[0]] * 2))
        rounding = 0.0 if self.vlm.dtype == torch.float32 else self.rounding()
        return max(LOGITS[self.vlm.dtype], NOISES * off(twice[:1], self.alone[:1]), min(MOST, KERNELS * rounding))

    def rounding(self) -> float:
        """How far eager attention moves the first prompt's logits; 0 where it cannot be chosen.

        At the shape of LLaVA-1.5-7B in bfloat16 an H200 gave 0.047, and 0.032 for padding (docs/gpu.md).
        """
        with switched(self.vlm.layout.module(self.vlm.model, "language_model"), "eager"):
            return off(self.logits(self.vlm.encode(self.prompts[:1])), self.alone[:1])

    @cached_property
    def both(self) -> Any:
        """Both prompts in one batch, of which one is padded."""
        return self.vlm.encode(self.prompts)

    @cached_property
    def both_other(self) -> Any:
        """The same with the other pictures."""
        return self.vlm.encode(self.others)

    def states(self, encoded: Any, modules: Mapping[Any, Any]) -> dict[Any, Tensor]:
        """What goes into and comes out of ``modules`` (name → module) in one forward."""
        seen: dict[Any, Tensor] = {}

        def keep(name: Any, module: Any, args: Any, kwargs: Any, output: Any) -> None:
            taken = args[0] if args else kwargs.get("hidden_states")
            seen["into", name], seen["out", name] = taken, _first(output)

        with ExitStack() as stack:
            for name, module in modules.items():
                stack.callback(module.register_forward_hook(partial(keep, name), with_kwargs=True).remove)
            self.logits(encoded)
        return seen

    @cached_property
    def whole(self) -> dict[Any, Tensor]:
        """One forward of the first prompt alone, layer by layer."""
        vlm, layout = self.vlm, self.vlm.layout
        layers = layout.module(vlm.model, "layers")
        modules: dict[Any, Any] = {("layer", i): layer for i, layer in enumerate(layers)}
        modules |= {part: layout.module(vlm.model, part) for part in ("final_norm", "lm_head")}
        for kind in ("attention", "mixer", "mlp"):
            modules |= {(kind, i): module for i, module in layout.sublayers(vlm.model, kind).items()}  # type: ignore[arg-type]
        return self.states(vlm.encode(self.prompts[:1]), modules)

    # the checks

    def _card(self) -> Check:
        """Token ids and greedy answer are those of the model card's own lines."""
        vlm, prompt = self.vlm, self.prompts[0]
        theirs = self._by_the_card(prompt)
        ids = theirs["input_ids"]
        ours = vlm.encode([prompt])
        if not torch.equal(ids.cpu(), ours["input_ids"].cpu()):
            return Check("failed", why=f"other token ids than the model card's lines ({ids.shape[1]} against "
                         f"{ours['input_ids'].shape[1]} tokens)")  # fmt: skip
        theirs.pop("labels", None)
        if (types := "mm_token_type_ids") in ours and types not in theirs:
            theirs[types] = ours[types]  # which tokens are the picture's: this processor says so only where asked
        options = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "max_new_tokens": TOKENS}
        with torch.no_grad():
            output = vlm.model.generate(**theirs.to(vlm.device, dtype=vlm.dtype), **options)
        pad = vlm.tokenizer.pad_token_id
        (answer,) = new_tokens(getattr(output, "sequences", output), ids, ends=vlm.end_ids, pad=pad)
        (own,) = vlm.generate([prompt], max_new_tokens=TOKENS).token_ids
        return Check("passed", 0.0, 0.0) if answer == own else Check("failed", why=f"it answers {own}, not {answer}")

    def _by_the_card(self, prompt: Prompt) -> Any:
        """The inputs that the model card's own lines make."""
        processor, text = self.vlm.processor, self.vlm.render(prompt)
        if self.vlm.layout.prompt == "pieces":  # IDEFICS' processor puts the placeholder and its frame in itself
            before, after = re.split("(?:<fake_token_around_image>)?<image>(?:<fake_token_around_image>)?", text)
            pieces = [before.removeprefix(self.vlm.tokenizer.bos_token), prompt.image, after]
            return processor(text=[pieces], return_tensors="pt", add_end_of_utterance_token=False)
        parts = [{"type": "image", "image": prompt.image}, {"type": "text", "text": prompt.text}]
        options = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "add_generation_prompt": True}
        try:
            found = processor.apply_chat_template([{"role": "user", "content": parts}], **options)
            assert "input_ids" in found
            return found
        except Exception:  # a processor that takes no chats, as InstructBLIP's
            return processor(text=[text], images=[prompt.image], return_tensors="pt")

    def _score(self) -> Check:
        """``score`` of a padded batch has the logits of each prompt alone."""
        kept: list[Tensor] = []

        def metric(logits: Tensor) -> Tensor:
            kept.append(logits.float().cpu())
            return logits[:, 0]

        self.vlm.score(self.prompts, encoded=self.both, metric=metric)
        return self.compare(off(kept[-1], self.alone), self.bound, "score has other logits than plain forwards")

    def _generate(self) -> Check:
        """The first scores of ``generate`` are the logits of each prompt alone."""
        kept: list[Tensor] = []
        self.vlm.generate(self.prompts, encoded=self.both, max_new_tokens=1, logits_processor=[_Kept(kept)])
        if not kept:
            return Check("failed", why="its own generate runs no logits processor, so margins and VCD are out of reach")
        return self.compare(off(kept[0], self.alone), self.bound, "generate has other logits than plain forwards")

    def _pixels(self) -> Check:
        """Every floating-point input with pixels changes with the picture."""
        clean = [name for name in pixel_inputs(self.both) if torch.equal(self.both[name], self.both_other[name])]
        if clean:
            return Check("failed", why=f"{', '.join(clean)} stay clean under another picture")
        again = off(self.each(self.prompts), self.alone)
        return self.compare(again, self.bound, "two forwards differ", off(self.each(self.others), self.alone))

    def _image_tokens(self) -> Check:
        """The columns of the first layer's input that change with the picture are image tokens."""
        vlm = self.vlm
        if vlm.layout.cross_attended:
            raise _NotShown("pictures are read by cross-attention")
        vlm.layout.require_image_tokens(vlm.name)
        first = vlm.layout.module(vlm.model, "layers")[0]
        x, y = (self.states(one, {0: first})["into", 0].float() for one in (self.both, self.both_other))
        ids = self.both["input_ids"].to(x.device)
        if x.shape[:2] != ids.shape:
            return Check("failed", why=f"the first layer takes {tuple(x.shape)} for {tuple(ids.shape)} tokens")
        moved = (x - y).flatten(2).norm(dim=-1) > SAME * x.flatten(2).norm(dim=-1)
        own = (ids == vlm.layout.image_token_id(vlm.model.config)) & self.both["attention_mask"].to(x.device).bool()
        wrong = int((moved & ~own).sum())
        if wrong:
            return Check(
                "failed", float(wrong), 0.0, why=f"{wrong} columns change with the picture and are no image tokens"
            )
        if not bool(moved.any(1).all()):
            raise _NotShown("no column changes with the picture")
        still = int((own & ~moved)[0].sum())
        if still:
            self.properties["still"] = f"{still} of {int(own[0].sum())} image tokens do not change with the picture"
        return Check("passed", 0.0, 0.0, float(moved[0].sum()))

    def _chain(self) -> Check:
        """Embeddings → first layer → each next layer → final norm → head, with nothing added between them."""
        from interp.segments import segment

        vlm, seen = self.vlm, self.whole
        count = len(vlm.layout.module(vlm.model, "layers"))
        encoded = vlm.encode(self.prompts[:1])
        row = segment(vlm, self.prompts[:1], encoded).rows[0]
        words = torch.tensor(row.columns("user"))
        if vlm.layout.cross_attended:
            return self._ends(count - 1)
        x = seen["into", ("layer", 0)][0]
        with torch.no_grad():
            embedded = vlm.model.get_input_embeddings()(encoded["input_ids"])[0]
        if x.shape != embedded.shape:
            return Check(
                "failed", why=f"the first layer takes {tuple(x.shape)}, the embeddings are {tuple(embedded.shape)}"
            )
        a, b = x[words.to(x.device)].float(), embedded[words.to(embedded.device)].float().to(x.device)
        scale = float((a * b).sum() / (b * b).sum())
        worst = self.compare(off(a, scale * b), self.exact, "the first layer does not take the words' embeddings")
        if worst.state != "passed":
            return worst
        image = torch.tensor([label == "image_0" for label in row.labels])
        between = []
        for i, j in pairwise(range(count)):
            one, other = seen["into", ("layer", j)][0], seen["out", ("layer", i)][0]
            if off(one, other) > self.exact:
                between.append(i)
                if off(one[~image.to(one.device)], other[~image.to(one.device)]) > self.exact:
                    return Check("failed", why=f"something is added between layers {i} and {j}")
        if between and between[-1] >= count // 2:
            return Check("failed", why=f"something is added at the image tokens behind layers {between}")
        if between:
            self.properties["deepstack"] = (
                f"the picture is added again behind layers {between[0]} to {between[-1]} (DeepStack): patching an "
                f"image token means something from residual layer {between[-1] + 2} on"
            )
        self.added = between[-1] + 1 if between else 0
        return self._ends(count - 1)

    def _ends(self, last: int) -> Check:
        """Last layer → final norm → head."""
        seen = self.whole
        for taker, giver, why in (
            ("final_norm", ("layer", last), "the final norm does not take the last layer's output"),
            ("lm_head", "final_norm", "the head does not take the final norm's output"),
        ):
            found = self.compare(off(seen["into", taker][:, -1], seen["out", giver][:, -1]), self.exact, why)
            if found.state != "passed":
                return found
        return found

    def _lens(self) -> Check:
        """Norm and head of the last layer's output, and what comes after the head, are the logits."""
        vlm, seen, layout = self.vlm, self.whole, self.vlm.layout
        after = measured(vlm.model, layout)
        if after.refusal:
            return Check("failed", why=after.refusal)
        last = seen["out", ("layer", len(layout.module(vlm.model, "layers")) - 1)][:, -1:]
        with torch.no_grad():
            made = layout.module(vlm.model, "lm_head")(layout.module(vlm.model, "final_norm")(last))
        found = after.after(made[:, -1].float().cpu())
        if after.after != AfterHead():
            self.properties["logits"] = f"logits are changed after the head: {after.after}"
        return self.compare(
            off(found, self.alone[:1]), self.bound, "norm and head of the last layer are not the logits"
        )

    def _additive(self) -> Check:
        """Each layer's output is its input and what its sublayers add."""
        vlm, seen = self.vlm, self.whole
        worst, bad = 0.0, []
        for i, block in vlm.layout.blocks.items():
            whole = seen["out", ("layer", i)]
            parts = {"input": seen["into", ("layer", i)]}
            parts |= {
                kind: seen["out", (kind, i)] for kind in ("attention", "mixer", "mlp") if ("out", (kind, i)) in seen
            }
            if any(part.numel() != whole.numel() for part in parts.values()):
                bad.append(i)
                continue
            factors, number = fitted(parts, whole, self.exact)
            worst = max(worst, number)
            if not number <= self.exact or not block.mlp or not (block.attention or block.mixer):
                bad.append(i)
            elif any(abs(factor - 1) > self.exact for factor in factors.values()):
                self.properties["factors"] = f"sublayers are added with factors ({factors})"
        missing = [i for i, block in vlm.layout.blocks.items() if not block.attention]
        crossing = set(vlm.layout.crossings(vlm.model))
        if unknown := set(range(len(vlm.layout.module(vlm.model, "layers")))) - vlm.layout.blocks.keys() - crossing:
            return Check("failed", why=f"nothing is known of layers {sorted(unknown)}")
        if missing:
            self.properties["hybrid"] = (
                f"layers {missing} have no attention: they carry the picture past every attention edge, so that "
                "knockout gives a lower bound of what the picture does"
            )
        if bad and all(vlm.layout.blocks[i].more for i in bad):
            self.properties["more"] = f"layers {bad} add inputs of their own besides attention and MLP"
            return Check("failed", worst, self.exact, why="inputs by layer are added besides attention and MLP")
        return self.compare(float("inf") if bad else worst, self.exact, f"layers {bad} are not input + attention + MLP")

    def _heads(self) -> Check:
        """Attention weights times values are what the map that adds up the heads takes; weights sum to 1."""
        vlm, layout = self.vlm, self.vlm.layout
        found: dict[int, tuple[Tensor, int, float]] = {}

        def see(call: AttentionCall) -> None:
            weights = call.rows()
            value = call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], 1)
            out = (weights @ value.float()).transpose(1, 2).flatten(2)
            found[call.layer] = out, call.query.shape[1], float((weights.sum(-1) - 1).abs().max())

        sums, attentions = layout.head_sums(vlm.model), layout.attentions(vlm.model)
        modules = {("sum", i): module for i, module in sums.items()} | {("all", i): m for i, m in attentions.items()}
        with intercept(vlm, observe=see):
            seen = self.states(vlm.encode(self.prompts[:1]), modules)
        worst, gated = 0.0, []
        if set(sums) != set(attentions) or not attentions:
            return Check("failed", why="no attention, or one whose heads are added up by no linear map")
        for i in attentions:
            out, heads, rows = found[i]
            taken = seen["into", ("sum", i)]
            if off(seen["out", ("sum", i)].reshape(-1), seen["out", ("all", i)].reshape(-1)) > self.exact:
                return Check("failed", why=f"the map of heads of layer {i} does not end its attention")
            if heads != layout.heads(i) or taken.shape[-1] != out.shape[-1]:
                return Check(
                    "failed", why=f"layer {i} has {heads} heads and a map of {taken.shape[-1]} for {out.shape[-1]}"
                )
            number = max(off(taken.reshape(out.shape), out), rows)
            if number > self.exact and is_gated(taken.reshape(out.shape).float(), out):
                gated.append(i)
                number = rows
            worst = max(worst, number)
        if gated:
            self.properties["gated"] = f"heads of layers {gated} are gated after attention, before they are added up"
        return self.compare(worst, self.exact, "weights times values are not what the map of heads takes")

    def _recorder(self) -> Check:
        """Attention that is recorded is eager attention, and recording changes no logit."""
        from interp.attention.check import check_recorder

        found = check_recorder(self.vlm, self.prompts)
        return Check("passed", max(found.kernel_error, found.rows_error), found.tolerance)

    def _complete(self) -> Check:
        """With every edge out of the picture cut in all layers, another picture moves no state behind it."""
        from interp.segments import segment
        from interp.tools.knockout import knockout

        if "hybrid" in self.properties:
            raise _NotShown("layers without attention carry the picture past every edge")
        vlm = self.vlm
        last = vlm.layout.module(vlm.model, "layers")[-1]
        ends = ("verdict", "user", "template", "system", "sink")

        def cut(prompts: list[Prompt], encoded: Any, edges: Sequence[Any]) -> Tensor:
            with knockout(vlm, edges, segments=segment(vlm, prompts, encoded)):
                return self.states(encoded, {0: last})["out", 0][:, -1].float()

        edges = [("image", end) for end in ends]
        one, other = cut(self.prompts, self.both, edges), cut(self.others, self.both_other, edges)
        nothing = [("generated", "verdict")]
        plain, moved = cut(self.prompts, self.both, nothing), cut(self.others, self.both_other, nothing)
        bound = self.exact / TIMES
        return self.compare(
            off(one, other), bound, "with the picture cut off another one still counts", off(plain, moved)
        )

    def _through(self) -> Check:
        """All states behind the last addition, put in the place of another prompt's, give that one's logits."""
        from interp.hooks.residual import LayerStates, edit_residual

        vlm, layer = self.vlm, self.added
        if vlm.layout.cross_attended:
            raise _NotShown("pictures are read by cross-attention")
        kept: list[Tensor] = []

        def keep(here: LayerStates) -> None:
            kept.append(here.hidden)

        with edit_residual(vlm, keep, layers=[layer + (layer > 0)]):
            there = self.logits(vlm.encode(self.others[:1]))
        with edit_residual(vlm, lambda here: kept[0], layers=[layer + (layer > 0)]):
            patched = self.logits(vlm.encode(self.prompts[:1]))
        found = self.compare(off(patched, there), self.bound, "patched states do not carry the other picture",
                            off(self.alone[:1], there))  # fmt: skip
        if found.state == "failed" and any(block.more for block in vlm.layout.blocks.values()):
            self.properties["by_layer"] = "inputs by layer carry the picture past the residual stream"
        return found
