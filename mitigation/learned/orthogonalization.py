"""Removes one direction from everything written into the residual stream: at run time, or in the weights.

Arditi et al. 2024, "Refusal in Language Models Is Mediated by a Single Direction", arXiv 2406.11717, sections 2.4
(directional ablation) and 4.1 (weight orthogonalization). With unit direction d, a state x becomes x − d (d·x). The
word embeddings, the image projector, and the outputs of every attention and MLP block write into the stream. Both ways
give the same states: if no write has a component along d, neither does the stream, and the norms only read.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.checkpoints.lora import plain_state
from interp.device_copies import Copies
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual
from interp.measured_numbers import FITS, measured, picture_ends
from interp.proof import made_up
from interp.trace import same_memory

if TYPE_CHECKING:
    from interp.vlm import VLM

PROJECTOR = "the projector"
INSERTED = "image_newline"
"""Parameters of this name are put between image tokens as they are (LLaVA-NeXT, LLaVA-OneVision)."""


@contextmanager
def projected(vlm: "VLM", direction: Float[Tensor, " width"]) -> Iterator[None]:
    """While open, no state of the residual stream of ``vlm`` has a component along ``direction``, at any position.

    Projects the inputs of every layer and of the final norm, and every attention block's output before its MLP reads
    it. In families that normalise a block's output before adding it (gemma 2 and 3), the norm's gains can restore part
    of the component in the middle of a layer. The model is restored when the block ends, also on an exception.
    """
    units = Copies(_unit(direction))

    def cleared(states: Tensor) -> Tensor:
        exact = states if states.dtype == torch.float64 else states.float()
        return without(exact, units.like(exact)).to(states.dtype)

    def entering(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (cleared(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": cleared(kwargs["hidden_states"])}

    def leaving(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (cleared(output[0]), *output[1:])
        return cleared(output)

    with ExitStack() as stack:
        for reader in (*vlm.layout.module(vlm.model, "layers"), vlm.layout.module(vlm.model, "final_norm")):
            stack.callback(reader.register_forward_pre_hook(entering, with_kwargs=True).remove)
        for attention in vlm.layout.attentions(vlm.model).values():
            stack.callback(attention.register_forward_hook(leaving).remove)
        yield


@contextmanager
def levelled(vlm: "VLM", direction: Float[Tensor, " width"], levels: Float[Tensor, " layer"]) -> Iterator[None]:
    """While open, states at the verdict and at generated tokens have ``levels`` along ``direction``, layer by layer.

    ``levels`` are those of layers 1 to L. The component then no longer depends on the case, but keeps a value that
    occurs: if no state is near 0 along the direction, projecting it out moves all states far off distribution.
    Marshall et al. 2024, "Refusal in LLMs is an Affine Function", arXiv 2411.09003.
    """
    units, heights = Copies(_unit(direction).float()), Copies(levels)

    def edit(here: LayerStates) -> Tensor:
        places = here.at("verdict", "generated")
        edited = here.hidden.clone()
        states = edited[places].float()
        unit, level = units.like(states), heights.like(states)[here.layer - 1]
        edited[places] = (without(states, unit) + level * unit).to(edited)
        return edited

    with edit_residual(vlm, edit, layers=range(1, len(levels) + 1)):
        yield


def without(states: Float[Tensor, "*any width"], unit: Float[Tensor, " width"]) -> Float[Tensor, "*any width"]:
    """``states`` minus their component along ``unit``, computed in at least float32, in the dtype of ``states``."""
    exact = states if states.dtype == torch.float64 else states.float()
    unit = unit.to(exact)
    return (exact - (exact @ unit)[..., None] * unit).to(states.dtype)


def orthogonalised(vlm: "VLM", direction: Float[Tensor, " width"], out: Path, *, why: str = "") -> Path:
    """Saves a copy of ``vlm`` whose weights do not write along ``direction``; ``model.path=<out>`` loads it.

    Changes the word embeddings, the projector's last layer, and every layer's attention and MLP output, with their
    biases. An adapter of the model's own is added to the weights first. An output head tied to the embeddings is untied
    first and kept. ``vlm`` itself does not change. ``out`` gets safetensors, the processor, and a model card that
    describes the change and includes ``why``.

    Raises:
        UserError: something else than plain linear maps writes into the stream (norms behind sublayers, experts,
            cross-attention, DeepStack); quantised weights; or a folder that exists and is not empty.
    """
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; a checkpoint is saved to a folder of its own; name another one")
    unit = _unit(direction)
    state = plain_state(vlm.model)
    rows, columns = _writers(vlm, state)
    head = f"{vlm.layout.lm_head}.weight"
    tied = state[head].data_ptr() == state[rows[0]].data_ptr()
    if tied:
        state[head] = state[head].clone()
    for name in rows:  # each row, like a bias, is a vector of the stream
        state[name] = without(state[name], unit)
    for name in columns:
        state[name] = without(state[name].T, unit).T.contiguous()
    with _untied(vlm.model.config, tied):
        vlm.model.save_pretrained(out, state_dict=state)
    vlm.processor.save_pretrained(out)
    (out / "README.md").write_text(_card(vlm, [*rows, *columns], tied, why), encoding="utf-8")
    return out


def _writers(vlm: "VLM", state: dict[str, Tensor]) -> tuple[list[str], list[str]]:
    """The parameters whose rows, and those whose columns, are vectors of the residual stream."""
    modules = _last_maps(vlm)
    embedding = vlm.model.get_input_embeddings()
    names = {id(module): name for name, module in vlm.model.named_modules()}
    rows = [f"{names[id(embedding)]}.weight", *(name for name in state if name.rpartition(".")[2] == INSERTED)]
    rows += sorted(f"{module}.bias" for module in modules if f"{module}.bias" in state)
    columns = sorted(f"{module}.weight" for module in modules)
    for name in (*rows, *columns):
        if name not in state or not state[name].is_floating_point():
            raise _refusal(vlm, f"it has no plain weights at {name}")
    return rows, columns


def _refusal(vlm: "VLM", why: str) -> UserError:
    return UserError(
        f"weights of {vlm.name} ({vlm.layout.model_type}) cannot be orthogonalised: {why}; ablate while running "
        "(weights=false), or load it unquantised if it is quantised"
    )


def _last_maps(vlm: "VLM") -> list[str]:
    """The linear maps that write into the stream: each gives what a sublayer adds, or what stands at image tokens.

    Read from one forward of a picture: the output of such a map is that of the whole sublayer, and every image token's
    state before the first layer is a row of the projector's output, or one that is put in as it is.
    """
    layout, model = vlm.layout, vlm.model
    if layout.cross_attended:
        raise _refusal(vlm, "it reads pictures by cross-attention, whose blocks write too")
    if any(block.more for block in layout.blocks.values()):
        raise _refusal(vlm, "its layers add inputs of their own")
    writers = {f"layer {i}'s {kind}": part for kind in ("attention", "mixer", "mlp")
               for i, part in layout.sublayers(model, kind).items()}  # type: ignore[arg-type]  # fmt: skip
    if max(measured(model, layout).off.values(), default=0.0) > FITS[model.dtype]:
        raise _refusal(vlm, "its layers add other things than attention and MLP")
    writers[PROJECTOR] = layout.module(model, "projector")
    names = {module: name for name, module in model.named_modules()}
    ran: list[tuple[str, Tensor]] = []
    found: dict[str, str] = {}
    seen: dict[str, Tensor] = {}

    def linear(module: Any, args: Any, output: Any) -> None:
        ran.append((names[module], output))

    def whole(name: str, module: Any, args: Any, output: Any) -> None:
        out = output[0] if isinstance(output, tuple | list) else getattr(output, "pooler_output", output)
        for path, one in ran:
            if one.shape[-1] == out.shape[-1] and same_memory(one, out):
                found[name] = path
        ran.clear()
        if name == PROJECTOR:
            seen[name] = out

    def entering(module: Any, args: Any, kwargs: Any) -> None:
        seen["states"] = args[0] if args else kwargs["hidden_states"]

    prompt = made_up()[0]
    encoded = vlm.encode([prompt])
    with ExitStack() as stack:
        maps = {m for part in writers.values() for m in part.modules() if isinstance(m, torch.nn.Linear)}
        for module in maps:
            stack.callback(module.register_forward_hook(linear).remove)
        for name, part in writers.items():
            stack.callback(part.register_forward_hook(partial(whole, name)).remove)
        first = layout.module(model, "layers")[0]
        stack.callback(first.register_forward_pre_hook(entering, with_kwargs=True).remove)
        vlm.score([prompt], encoded=encoded)
        if picture_ends(model, layout, lambda: vlm.score([prompt], encoded=encoded)):
            raise _refusal(vlm, "the picture is added again behind its first layers (DeepStack)")
    for name in writers:
        if name not in found:
            raise _refusal(vlm, f"what {name} adds is the output of no plain linear map (a norm, or experts)")
    image = encoded["input_ids"][0] == layout.image_token_id(model.config)
    states = seen["states"][0][image.to(seen["states"].device)].float()
    inserted = [weight[None] for name, weight in model.named_parameters() if name.endswith(INSERTED)]
    written = torch.cat([one.reshape(-1, states.shape[-1]).float().to(states.device)
                         for one in (seen[PROJECTOR], *inserted)])  # fmt: skip
    if float((torch.cdist(states, written).min(dim=1).values / states.norm(dim=1)).max()) > 1e-2:
        raise _refusal(vlm, "what stands at its image tokens is not what its projector gives")
    return sorted(set(found.values()))


@contextmanager
def _untied(config: Any, tied: bool) -> Iterator[None]:
    """While open, the configuration says that the head is not tied, so that it is saved so."""
    parts = [part for part in (config, config.get_text_config()) if tied]
    before = [getattr(part, "tie_word_embeddings", None) for part in parts]
    for part in parts:
        part.tie_word_embeddings = False
    try:
        yield
    finally:
        for part, value in zip(parts, before, strict=True):
            part.tie_word_embeddings = value


def _card(vlm: "VLM", changed: list[str], tied: bool, why: str) -> str:
    untied = " The output head, which shared the embeddings' weights, was untied and kept." if tied else ""
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: image-text-to-text",
            "tags: [interpretability, ablation]",
            "---",
            f"# {vlm.name} with one direction taken out of its weights",
            "",
            f"Made from `{vlm.name}` (weights {vlm.revision or 'built in memory'}) by weight orthogonalisation (Arditi "
            "et al. 2024, arXiv 2406.11717, section 4.1): every matrix below that writes into the residual stream was "
            f"made orthogonal to one direction, so that no state has a component along it.{untied} {why}".rstrip(),
            "",
            "**This removes a safety mechanism on purpose**, to measure what it does. It is material for research on "
            "over-refusal, and not to be deployed. Nothing else was trained or changed; the licence is the original's.",
            "",
            "Changed parameters:",
            "",
            "```json",
            json.dumps(changed, indent=1),
            "```",
            "",
        ]
    )


def _unit(direction: Float[Tensor, " width"]) -> Float[Tensor, " width"]:
    exact = direction.detach().double()
    if not bool(exact.isfinite().all()) or not float(exact.norm()) > 0:
        raise UserError("the direction has no length; it must be finite and not zero; learn it again")
    return exact / exact.norm()
