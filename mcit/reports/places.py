"""Where in a network a parameter is: its layer, and its modality or stage."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A layer, and the part of the network it belongs to: text, image, fusion, head; or stem, stage 1, ..., head."""

    layer: str
    part: str


# What a name holds, the layer and the part; in the order of the network, from its input to its output.
_VILT = (
    (r"\btext_embeddings\.", "text embeddings", "text"),
    (r"\b(?:cls_token|patch_embeddings|position_embeddings)\b", "image embeddings", "image"),
    (r"\btoken_type_embeddings\.", "modality embeddings", "fusion"),
    (r"\bencoder\.layer\.(\d+)\.", "layer {}", "fusion"),
    (r"\blayernorm\.", "final norm", "fusion"),
    (r"\bpooler\.", "pooler", "fusion"),
)
_HEAD = (
    (r"(?:^|\.)heads\.([^.]+)\.", "head {}", "head"),
    (r"(?:^|\.)(?:classifier|fc|lm_head|head)\.", "head", "head"),
)
_BLOCKS_PER_STAGE = 2  # of our ResNet-18, whose blocks are numbered through


def locate(names: Iterable[str]) -> dict[str, Place]:
    """The places of a network's parameters, from input to output.

    ViLT and ResNet are known, inside other models too; of other networks the names are taken as they are.
    """
    names = list(names)
    together = "\n".join(names)
    if "text_embeddings." in together and "patch_embeddings." in together:
        find = _find_in_vilt
    elif re.search(
        r"(?:^|\.)(?:blocks\.\d+\.conv|layer4\.\d+\.(?:conv|bn))\d\.", together, re.MULTILINE
    ):
        find = _find_in_resnet
    else:
        find = _find_head
    found = {name: find(name) or (0, _guess(name)) for name in names}
    ordered = sorted(names, key=lambda name: (found[name][0], _count_up(found[name][1].layer)))
    return {name: found[name][1] for name in ordered}


def _find_in_vilt(name: str) -> tuple[int, Place] | None:
    return _find_head(name) or _match(name, _VILT)


def _find_in_resnet(name: str) -> tuple[int, Place] | None:
    ours, theirs = (
        re.search(r"(?:^|\.)blocks\.(\d+)\.", name),
        re.search(r"(?:^|\.)layer(\d)\.(\d+)\.", name),
    )
    if not ours and not theirs:  # what is in no block: a stem, or torchvision's first layers
        stem = re.search(r"(?:^|\.)(?:stem|conv1|bn1)\.", name)
        return _find_head(name) or ((0, Place("stem", "stem")) if stem else None)
    stage, block = (
        divmod(int(ours[1]), _BLOCKS_PER_STAGE) if ours else (int(theirs[1]) - 1, int(theirs[2]))
    )
    return 1, Place(f"stage {stage + 1}, block {block + 1}", f"stage {stage + 1}")


def _find_head(name: str) -> tuple[int, Place] | None:
    found = _match(name, _HEAD)
    return found and (len(_VILT), found[1])  # after everything else


def _match(name: str, patterns: Iterable[tuple[str, str, str]]) -> tuple[int, Place] | None:
    for number, (pattern, layer, part) in enumerate(patterns):
        found = re.search(pattern, name)
        if found:
            return number, Place(layer.format(*found.groups()), part.format(*found.groups()))
    return None


def _guess(name: str) -> Place:
    """The name up to its first number, or without its last word."""
    found = re.match(r"(.*?\.\d+)\.", name)
    layer = found[1] if found else name.rpartition(".")[0] or name
    return Place(layer, layer.split(".")[0])


def _count_up(text: str) -> list[tuple[int, str]]:
    """A key that puts layer 2 before layer 10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)
    ]
