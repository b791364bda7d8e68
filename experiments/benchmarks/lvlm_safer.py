"""LVLM-SafeR (isXinLiu/LVLM-SafeR): groups of one request to answer and one to refuse, which share text or picture.

Four files under ``data/``, 125 groups each. In files 1 and 2 the text is the same and the pictures differ, in files 3
and 4 the picture is the same and the texts differ; both are counterfactual pairs. The pictures are not in the
repository: ``download_img.sh`` fetches those of the web, the others are in an archive that its README links, and all
belong in ``data/imgs``. Prompts are under CC BY-NC 4.0, pictures under their own licences. Knows nothing of models,
judges or metrics.
"""

from dataclasses import dataclass
from typing import Any

from experiments.benchmarks.published_benchmark import Collected, PublishedBenchmark, check_part
from experiments.benchmarks.rows import json_file, need

REPOSITORY = "https://github.com/isXinLiu/LVLM-SafeR"
FILES = {  # kind of group → its file
    "multiple meaning": "1-same_prompt_multiple_meaning.json",
    "different attributes": "2-same_prompt_different_attibutes.json",  # spelt so
    "different region": "3-same_image_different_region.json",
    "same region": "4-same_image_same_region.json",
}
PAIRINGS = {
    "same_prompt": ("multiple meaning", "different attributes"),
    "same_image": ("different region", "same region"),
    "both": tuple(FILES),
}
GET = (
    f"git clone {REPOSITORY}, unpack the archive that its README links into data/imgs, and run its download_img.sh for "
    "the pictures of the web"
)


@dataclass(frozen=True)
class LVLMSafeR(PublishedBenchmark):
    """The benchmark in a clone at ``root``; ``pairing`` says which groups to ask: same_prompt, same_image or both.

    Many addresses of pictures are gone: without ``strict`` the cases whose picture is there are asked and the others
    counted; ``strict`` stops where one is missing.

    Raises:
        UserError: an unknown pairing.
    """

    pairing: str = "both"
    name: str = "lvlm_safer"
    GET = GET

    def __post_init__(self) -> None:
        check_part("pairing", self.pairing, PAIRINGS)

    def find(self) -> Collected:
        """All cases that the files name."""
        found = Collected(self.folder)
        for kind in PAIRINGS[self.pairing]:
            source = self.folder / "data" / FILES[kind]
            for number, entry in enumerate(json_file(source, list, GET), 1):
                group = f"{FILES[kind][0]}.{number}"
                with found.entry(group, source, f"entry {number}"):
                    for side, text, picture, tags in _members(entry):
                        image = self.folder / "data" / "imgs" / picture
                        found.add(f"{group}-{side}", side, scenario=kind, text=text, image=image, pair=group, tags=tags)
        return found


def _members(entry: Any) -> list[tuple[str, str, str, dict[str, str]]]:
    """Side, text, picture and tags of both cases of a group; all is read before the first becomes a case."""
    pairs = {side: need(entry, f"{side}_pair", dict) for side in ("safe", "unsafe")}
    if "img" in entry:
        picture = need(entry, "img", dict)
        about = _tags(picture, "type")
        name = need(picture, "id")
        return [(side, need(pair, "question"), name, about | _tags(pair, "region")) for side, pair in pairs.items()]
    text, about = need(entry, "prompt"), _tags(entry, "type", "word")
    return [(side, text, need(pair, "img_id"), about | _tags(pair, "description")) for side, pair in pairs.items()]


def _tags(fields: dict[str, Any], *names: str) -> dict[str, str]:
    named = {"type": "topic"}  # "type" is what metrics call the kind of group
    return {named.get(key, key): text for key in names if isinstance(text := fields.get(key), str) and text}
