"""Removes one direction from everything written into the residual stream: at run time, or in the weights.

Arditi et al. 2024, "Refusal in Language Models Is Mediated by a Single Direction", arXiv 2406.11717, sections 2.4
(directional ablation) and 4.1 (weight orthogonalization). With unit direction d, a state x becomes x − d (d·x). The
word embeddings, the image projector, and the outputs of every attention and MLP block write into the stream. Both ways
give the same states: if no write has a component along d, neither does the stream, and the norms only read.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.checkpoints.lora import plain_state
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual
from interp.host import Copies

if TYPE_CHECKING:
    from interp.vlm import VLM

PROJECTOR_WRITES = {
    "llava": "linear_2",
    "llava_next": "linear_2",
    "internvl": "linear_2",
    "idefics3": "modality_projection.proj",
    "smolvlm": "modality_projection.proj",
    "qwen2_vl": "mlp.2",
    "qwen2_5_vl": "mlp.2",
}
"""The projector's last linear layer by family, whose output is at the image tokens; paths of transformers 5.23."""

LAYER_WRITES = ("self_attn.o_proj", "mlp.down_proj")
ALSO_WRITES = {"llava_next": ("model.image_newline",)}
"""Parameters that are inserted into the sequence directly."""


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
        UserError: an unsupported family, or one whose block outputs are normalised before they are added; quantised
            weights; or a folder that exists and is not empty.
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
    family, layout = vlm.layout.model_type, vlm.layout
    layers = layout.module(vlm.model, "layers")
    if family not in PROJECTOR_WRITES or any(hasattr(layer, "pre_feedforward_layernorm") for layer in layers):
        raise UserError(
            f"weights of {vlm.name} ({family}) cannot be orthogonalised here; known: {', '.join(PROJECTOR_WRITES)}; "
            "ablate while running (weights=false)"
        )
    modules = {f"{layout.projector}.{PROJECTOR_WRITES[family]}"}
    modules |= {f"{layout.layers}.{i}.{part}" for i in range(len(layers)) for part in LAYER_WRITES}
    embedding = vlm.model.get_input_embeddings()
    names = {id(module): name for name, module in vlm.model.named_modules()}
    rows = [f"{names[id(embedding)]}.weight", *ALSO_WRITES.get(family, ())]
    rows += sorted(f"{module}.bias" for module in modules if f"{module}.bias" in state)
    columns = sorted(f"{module}.weight" for module in modules)
    for name in (*rows, *columns):
        if name not in state or not state[name].is_floating_point():
            raise UserError(
                f"{vlm.name} has no plain weights at {name}; only unquantised weights of the standard layers can be "
                "orthogonalised; ablate while running (weights=false), or load it unquantised"
            )
    return rows, columns


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
