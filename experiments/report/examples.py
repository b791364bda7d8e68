"""The few cases that the report shows first: three that changed and two that did not, with where the verdict looked.

Of a run with one arm: three that went wrong and two that went right. The choice depends on the records only. Cases
whose attention was logged come first, and harmless ones before unsafe ones.
"""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from experiments.report.cases import COMPARED_SUBSETS, HIDDEN_SUBSETS, Flip, choose, judged, shown_case
from experiments.report.figures import SHARES
from experiments.report.saved_run import SavedRun, thumbnail_name
from experiments.report.tables import fixed

CHANGED, SAME = 3, 2
TITLES = {0: "No case {}", 1: "One case that {}", 2: "Two cases that {}", 3: "Three cases that {}"}
HARMLESS_FIRST = sorted(COMPARED_SUBSETS, key=lambda subset: subset in HIDDEN_SUBSETS)


def examples(run: SavedRun, *, studied: str, reference: str, attention: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what to show of ``run``; ``reference`` is the arm that ``studied`` is compared with, or ``studied``.

    Returns:
        ``groups``, two of (title, cases); ``most``, the value of the maps' full colour, empty without maps. ``glance``
        is the first map whose picture need not be blurred. A case has a ``word`` on what became of it, the ``tone`` of
        its colour, and its ``maps`` or the reason why it has none.
    """
    logged: Mapping[str, Any] = (attention or {}).get("cases") or {}
    arms, alone = list(dict.fromkeys((reference, studied))), studied == reference
    cases = judged(run.predictions, arm=studied, reference=reference)
    names = {True: ("broken", "fixed"), False: ("wrong", "right")}  # by whether the case flipped
    tones = {flip.case: names[flipped][flip.fixed] for flip, flipped in cases}
    groups: dict[str, tuple[str, ...]] = {"changed": names[True], "did not change": names[False]}
    if alone:
        groups = {"went wrong": ("wrong",), "went right": ("right",)}
    chosen = []
    for tone, count in zip(groups.values(), (CHANGED, SAME), strict=True):
        flips = [flip for flip, _ in cases if tones[flip.case] in tone]
        seen = [flip for flip in flips if flip.case in logged]
        chosen.append(choose(seen if len(seen) >= count else flips, arm=studied, count=count, first=logged,
                             subsets=HARMLESS_FIRST, largest=tone != names[False]))  # fmt: skip
    blocks = {flip.case: logged.get(flip.case) or {} for part in chosen for flip in part}
    maps = {case: {arm: values for arm in arms if (values := image_map(block.get(arm))) is not None}
            for case, block in blocks.items()}  # fmt: skip
    most = max((float(values.max()) for of_case in maps.values() for values in of_case.values()), default=0.0)

    def example(flip: Flip) -> dict[str, Any]:
        tone = tones[flip.case]
        word = f"still {tone}" if tone in names[False] and not alone else tone
        drawn = _drawn(run, flip.case, maps[flip.case], most)
        why = "" if not logged else "Attention was not logged for this case."
        if maps[flip.case]:
            why = "Its picture was not kept, so there is nothing to lay the attention over."
        return {"case": shown_case(run, flip, studied, arms), "word": word, "tone": tone, "maps": drawn,
                "why_no_map": "" if drawn else why}  # fmt: skip

    made = [[example(flip) for flip in part] for part in chosen]
    with_maps = [each for part in made for each in part if each["maps"]]
    return {
        "groups": [(TITLES[len(part)].format(title), part) for title, part in zip(groups, made, strict=True)],
        "most": f"{fixed(100 * most, 1)}%" if with_maps else "",
        "glance": next((each["maps"][0] for each in with_maps if not each["case"]["hidden"]), None),
    }


def _drawn(run: SavedRun, case: str, maps: Mapping[str, np.ndarray], most: float) -> list[dict[str, str]]:
    """Return the maps over the case's thumbnail; none if that was not kept."""
    labelled = {f"where {arm} looked": values for arm, values in maps.items()}
    if len(maps) > 1 and alike(list(maps.values())):
        labelled = {"where both looked": next(iter(maps.values()))}
    try:
        picture = (run.directory / "thumbnails" / thumbnail_name(case)).read_bytes() if maps else b""
        return [{"label": label, "uri": overlay(picture, values, most),
                 "alt": f"{label}: {describe_map(values)}"} for label, values in labelled.items()]  # fmt: skip
    except OSError:
        return []


SIDE = 240  # pixels, the longer side
QUALITY = 80  # of JPEG
COLOUR = 0.62  # share of the map's colour in a pixel; the rest is the picture in grey, so that its outlines stay
_VERDICT = re.compile(r"yes|no", re.IGNORECASE)


def verdict_token(block: Mapping[str, Any]) -> int:
    """Return where the verdict was read: the first token of the answer that is a Yes or a No, else its first token."""
    return next((at for at, token in enumerate(block["tokens"]) if _VERDICT.fullmatch(str(token).strip())), 0)


def image_map(block: Mapping[str, Any] | None) -> np.ndarray | None:
    """Return the verdict's attention by cell of the picture [row column], a mean over layers and heads.

    A cell holds the share of all the verdict's attention that falls on it. A block that is not of the shape that
    ``experiments.evaluation.attention_log`` writes has no map.
    """
    if not block or not block.get("grid"):
        return None
    try:
        rows, columns = (int(size) for size in block["grid"])
        shape = (len(block["tokens"]), len(block["layers"]), len(block["groups"]), rows, columns)
        steps = np.frombuffer(base64.b64decode(block["image"]), dtype=np.uint8).reshape(shape)
        scale = np.asarray(block["image_scale"], dtype=float).reshape(shape[:3])
    except (KeyError, TypeError, ValueError):
        return None
    token = verdict_token(block)
    values: np.ndarray = (steps[token, :, 0] * scale[token, :, 0, None, None] / 255).mean(axis=0)
    return values


def alike(maps: Sequence[np.ndarray]) -> bool:
    """Return whether ``maps`` are the same except for their rounding to 8 bits."""
    first = maps[0]
    return all(one.shape == first.shape and np.allclose(one, first, rtol=0, atol=first.max() / 64) for one in maps[1:])


def overlay(picture: bytes, values: np.ndarray, most: float) -> str:
    """Return the picture in grey under the colours of ``SHARES``, as a data URI of a JPEG.

    Args:
        picture: an image file.
        values: by cell [row column].
        most: the value of full colour, the same for all maps that are compared.

    Raises:
        OSError: ``picture`` is no image.
    """
    image = Image.open(io.BytesIO(picture)).convert("L")
    factor = SIDE / max(image.size)
    image = image.resize((max(1, round(image.width * factor)), max(1, round(image.height * factor))))
    rows = np.arange(image.height) * values.shape[0] // image.height
    columns = np.arange(image.width) * values.shape[1] // image.width
    share = np.clip(values / most if most > 0 else values * 0, 0, 1)[rows[:, None], columns[None, :]]
    colours = 255 * SHARES(share)[..., :3]
    grey = ImageOps.autocontrast(image)
    blended = Image.fromarray(
        (COLOUR * colours + (1 - COLOUR) * np.asarray(grey, dtype=float)[..., None]).astype(np.uint8)
    )
    buffer = io.BytesIO()
    blended.save(buffer, format="JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def describe_map(values: np.ndarray) -> str:
    """Return in words where the strongest cell is and how much of the verdict's attention the picture draws.

    Rows and columns count from 1 at the upper left.
    """
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    return (
        f"strongest in row {row + 1} of {values.shape[0]}, column {column + 1} of {values.shape[1]}; "
        f"the picture draws {100 * float(values.sum()):.0f}% of the verdict's attention"
    )
