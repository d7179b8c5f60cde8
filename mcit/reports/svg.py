"""SVG files made fit to stand together in one HTML page: unique ids, no scripts, nothing fetched from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from mcit.errors import DataError

REMOVED = ("metadata", "script", "foreignObject", "a", "iframe", "audio", "video")
URL = re.compile(r"""url\(\s*["']?([^)"']*)["']?\s*\)""", re.IGNORECASE)
LONG = re.compile(r"-?\d+\.\d{3,}(?![\de])")
COORDINATES = {
    "d",
    "points",
    "transform",
    "x",
    "y",
    "x1",
    "x2",
    "y1",
    "y2",
    "cx",
    "cy",
    "width",
    "height",
}
LABELS = ("aria-labelledby", "aria-describedby")
IMPORT = re.compile(r"@import[^;]*;?", re.IGNORECASE)


def embed_svg(path: Path, prefix: str, label: str) -> str:
    """The drawing as an element of an HTML page; every id and every reference to one begins with `prefix`."""
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except ElementTree.ParseError as error:
        raise DataError(f"{path} is no whole SVG file: {error}") from None
    _strip_namespaces(root)
    if root.tag != "svg":
        raise DataError(f"{path} is no SVG file: its outermost element is <{root.tag}>")
    _remove(root)
    text = ElementTree.tostring(root, encoding="unicode")
    ids = {
        name: f"{prefix}-{number}" for number, name in enumerate(sorted(_find_used_ids(root, text)))
    }
    for element in root.iter():
        _rename(element, ids)
        _shorten(element)
        if (
            element.tag == "style"
        ):  # a style inside an HTML page would otherwise hold for the whole of it
            element.text = f"#{prefix} {{ {_rename_in_style(element.text or '', ids)} }}"
    _fit(root)
    root.attrib |= {"id": prefix, "role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


def _strip_namespaces(root: ElementTree.Element) -> None:
    """HTML knows the namespace of what is inside <svg>; xlink:href has long been plain href."""
    for element in root.iter():
        element.tag = _local(element.tag)
        for name in list(element.attrib):
            if name.startswith("{"):
                element.set(_local(name), element.attrib.pop(name))


def _remove(parent: ElementTree.Element) -> None:
    for child in list(parent):
        if child.tag in REMOVED or (
            child.tag == "title" and parent.tag == "svg"
        ):  # it would cover all as a tip
            parent.remove(child)
        else:
            _remove(child)


def _find_used_ids(root: ElementTree.Element, text: str) -> set[str]:
    """The ids that something in the drawing refers to; a drawing program gives one to almost everything."""
    words = set(re.findall(r"#([\w.:-]+)", text))
    for name in LABELS:
        words |= {word for element in root.iter() for word in element.get(name, "").split()}
    return words & {element.get("id", "") for element in root.iter()}


def _shorten(element: ElementTree.Element) -> None:
    """Five digits place a point in a drawing; line breaks and indentation place nothing."""
    for name in COORDINATES & element.attrib.keys():
        value = LONG.sub(
            lambda found: f"{float(found[0]):.5g}", " ".join(element.get(name, "").split())
        )
        element.set(name, re.sub(r" ?([A-Za-z]) ?", r"\1", value) if name == "d" else value)
    if element.tag not in ("text", "tspan", "style") and not (element.text or "").strip():
        element.text = None
    if element.tag != "tspan" and not (element.tail or "").strip():
        element.tail = None


def _rename(element: ElementTree.Element, ids: Mapping[str, str]) -> None:
    for name, value in list(element.attrib.items()):
        if _is_unwanted(name, value) or (name == "id" and value not in ids):
            del element.attrib[name]
        elif name == "id":
            element.set(name, ids[value])
        elif name == "href" and value.startswith("#"):
            element.set(name, f"#{ids.get(value[1:], value[1:])}")
        elif name in LABELS:
            element.set(name, " ".join(ids.get(word, word) for word in value.split()))
        else:
            element.set(name, _rename_urls(value, ids))


def _is_unwanted(name: str, value: str) -> bool:
    """What runs a script, or refers to another file."""
    return name.lower().startswith("on") or (
        name == "href" and not value.startswith(("#", "data:image/"))
    )


def _rename_urls(text: str, ids: Mapping[str, str]) -> str:
    """`url(#clip)` with the new id; what is neither in the drawing nor data becomes `none`."""

    def replace(found: re.Match[str]) -> str:
        target = found[1]
        if target.startswith("#"):
            return f"url(#{ids.get(target[1:], target[1:])})"
        return found[0] if target.startswith("data:image/") else "none"

    return URL.sub(replace, text)


def _rename_in_style(text: str, ids: Mapping[str, str]) -> str:
    text = _rename_urls(IMPORT.sub("", text), {})
    return re.sub(r"#([\w-]+)", lambda found: f"#{ids.get(found[1], found[1])}", text)


def _fit(root: ElementTree.Element) -> None:
    """Leave the size to the page, which is told the width that was drawn."""
    width, height = (re.match(r"[\d.]+", root.get(name, "")) for name in ("width", "height"))
    if "viewBox" not in root.attrib and width and height:
        root.set("viewBox", f"0 0 {width[0]} {height[0]}")
    drawn = re.fullmatch(r"([\d.]+)(px|pt|in|cm|mm)?", root.get("width", ""))
    for name in ("width", "height", "style", "version"):
        root.attrib.pop(name, None)
    if drawn:
        root.set("style", f"--drawn:{drawn[1]}{drawn[2] or 'px'}")


def _local(name: str) -> str:
    return name.rpartition("}")[2]
