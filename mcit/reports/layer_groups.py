"""Where in a network a parameter is: its layer, and the modality or stage that the layer is of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcit.reports.formats import natural_key


@dataclass(frozen=True)
class LayerGroup:
    """A layer, and its part of the network: text, image, fusion, head; or stem, stage 1, ..."""

    layer: str
    part: str


# a pattern of names, the layer and the part it stands for; from the input to the output
Pattern = tuple[str, str, str]
VILT: tuple[Pattern, ...] = (
    (r"\btext_embeddings\.", "text embeddings", "text"),
    (r"\b(?:cls_token|patch_embeddings|position_embeddings)\b", "image embeddings", "image"),
    (r"\btoken_type_embeddings\.", "modality embeddings", "fusion"),
    (r"\bencoder\.layer\.(\d+)\.", "layer {}", "fusion"),
    (r"\blayernorm\.", "final norm", "fusion"),
    (r"\bpooler\.", "pooler", "fusion"),
)
LLAVA: tuple[Pattern, ...] = (
    (r"\bvision_tower\..*?layers\.(\d+)\.", "vision layer {}", "image"),
    (r"\bvision_tower\.", "vision", "image"),
    (r"\bmulti_modal_projector\.", "projector", "fusion"),
    (r"\blanguage_model\..*?layers\.(\d+)\.", "language layer {}", "text"),
    (r"\blanguage_model\.", "language", "text"),
)
# torchvision's names, and ours: two blocks to a stage, numbered through
RESNET: tuple[Pattern, ...] = (
    (r"^(?:\w+\.)?(?:stem|conv1|bn1)\.", "stem", "stem"),
    (r"(?:^|\.)layer(\d)\.(\d+)\.", "stage {}, block {}", "stage {}"),
    (r"(?:^|\.)blocks\.([01])\.", "stage 1, block {}", "stage 1"),
    (r"(?:^|\.)blocks\.([23])\.", "stage 2, block {}", "stage 2"),
    (r"(?:^|\.)blocks\.([45])\.", "stage 3, block {}", "stage 3"),
    (r"(?:^|\.)blocks\.([67])\.", "stage 4, block {}", "stage 4"),
)
HEADS: tuple[Pattern, ...] = (
    (r"(?:^|\.)heads\.([^.]+)\.", "head {}", "head"),
    (r"(?:^|\.)(?:classifier|fc|lm_head|head)\.", "head", "head"),
)
# by a name that only this kind of network has
NETWORKS = {
    r"\bpatch_embeddings\.": VILT,
    r"\bmulti_modal_projector\.": LLAVA,
    r"(?:^|\.)(?:blocks\.\d+\.conv|layer4\.\d+\.(?:conv|bn))\d\.": RESNET,
}


def find_layer_groups(names: Iterable[str]) -> dict[str, LayerGroup]:
    """Return the layer groups of a network's parameters, from input to output.

    Known networks are found inside other models too; in others the names speak for themselves.
    """
    names = list(names)
    patterns = HEADS
    for mark, known in NETWORKS.items():
        if any(re.search(mark, name) for name in names):
            patterns = known + HEADS
    found = {name: _find(name, patterns) for name in names}
    ordered = sorted(names, key=lambda name: found[name][0])
    return {name: found[name][1] for name in ordered}


def _find(name: str, patterns: Sequence[Pattern]) -> tuple[tuple[int, str], LayerGroup]:
    """Return the layer group of a parameter, and what to sort it by."""
    for place, (pattern, layer, part) in enumerate(patterns):
        match = re.search(pattern, name)
        if match is not None:
            group = LayerGroup(layer.format(*match.groups()), part.format(*match.groups()))
            return (place, natural_key(group.layer)), group
    # the name up to its first number, or without its last word
    match = re.match(r"(.*?\.\d+)\.", name)
    layer = match[1] if match else name.rpartition(".")[0] or name
    return (-1, natural_key(layer)), LayerGroup(layer, layer.split(".")[0])
