"""YAML as people expect it: plain values of YAML 1.2, and a key that is given twice is an error."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml


def load_yaml(text: str) -> Any:
    """The value that a text spells; a malformed one is a yaml.YAMLError."""
    return yaml.load(text, _Loader)


def dump_yaml(data: Any) -> str:
    """The text of plain dictionaries and lists, in their own order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_value(text: str) -> Any:
    """The value that one word spells, or the word itself."""
    try:
        return load_yaml(text)
    except yaml.YAMLError:
        return text


class _Loader(yaml.SafeLoader):
    """Plain values as in YAML 1.2: `1e4` is a number, and `no`, `007`, `1:30` and `2024-01-01` are words.

    A key that is given twice is an error.
    """

    yaml_implicit_resolvers: ClassVar[dict] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for number, key in enumerate(keys):
            if key.value in (earlier.value for earlier in keys[:number]):
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is given twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes a text that this or another reader would take for something else."""


_FLOAT = r"-?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?|-?\d+[eE][-+]?\d+|-?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
for _tag, _pattern, _first in (
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"-?(0|[1-9]\d*)", list("-0123456789")),
    ("float", _FLOAT, list("-.0123456789")),
    ("merge", "<<", ["<"]),
):
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
        )
