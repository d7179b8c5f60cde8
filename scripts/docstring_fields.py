"""For the docs site: fields `name: text` of a docstring become a list.

mkdocstrings shows docstrings as Markdown, where consecutive lines are one paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import griffe

FIELD = re.compile(r"^(?P<name>[a-z_]+): (?P<text>\S.*)$")


class DocstringFields(griffe.Extension):
    """Rewrites the docstrings of all objects as they are loaded."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is None:
            return
        names: list[str] = []
        if isinstance(obj, griffe.Function):
            names = [parameter.name for parameter in obj.parameters]
        obj.docstring.value = list_fields(obj.docstring.value, names)


def list_fields(text: str, names: Iterable[str] = ()) -> str:
    """Return the docstring with every paragraph of `name: text` fields as a Markdown list.

    names: the parameters, whose fields may also begin in the middle of a line.
    """
    paragraphs = [_list_paragraph(paragraph, names) for paragraph in text.split("\n\n")]
    return "\n\n".join(paragraphs)


def _list_paragraph(paragraph: str, names: Iterable[str]) -> str:
    if not FIELD.match(paragraph.partition("\n")[0]):
        return paragraph
    for name in names:
        paragraph = re.sub(rf"(?<=[.]) +{name}: ", f"\n{name}: ", paragraph)
    items: list[str] = []
    for line in paragraph.splitlines():
        match = FIELD.match(line)
        if match:
            items.append(f"- `{match['name']}`: {match['text']}")
        else:
            # the rest of a field, whether it is indented or not
            items[-1] += f" {line.strip()}"
    return "\n".join(items)
