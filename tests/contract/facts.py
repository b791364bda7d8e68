"""What a reader of the table must know of a family, and of the small model that stands for it here."""

from typing import Any

from interp.layout import layout_for
from interp.proof import types_of
from tests.tiny import Pieces

UNSEEN = "tiny random weights alone: never run on real weights"
NO_TEMPLATE = "no chat template in the published processors: model.chat_template gives one"
NO_VIDEO = "processor built without its video part, which needs torchvision"
SOFT_CAP = "softcap: attention logits are capped, so recording computes float32 rows in chunks"
WITHOUT_TEMPLATE = ("instructblip", "paligemma", "paligemma2", "idefics")


def facts(family: str, pieces: Pieces) -> dict[str, Any]:
    """``model_type`` and ``notes`` of one entry."""
    config: Any = pieces.model.config
    layout = layout_for(pieces.model)
    notes = [layout.note] if layout.note else []
    if getattr(config.get_text_config(), "attn_logit_softcapping", None):
        notes.append(SOFT_CAP)
    if family in WITHOUT_TEMPLATE:
        notes.append(NO_TEMPLATE)
    if "video_processor" in type(pieces.processor).get_attributes():
        notes.append(NO_VIDEO)
    return {"model_type": config.model_type, "types": types_of(pieces.model), "notes": [*notes, UNSEEN]}
