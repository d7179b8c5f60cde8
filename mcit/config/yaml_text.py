"""YAML with the plain values of YAML 1.2; a key that is given twice is an error."""

from __future__ import annotations

import re
from typing import Any

import yaml


def load_yaml(text: str) -> Any:
    """Return the value that a text spells; raise a yaml.YAMLError if it is malformed."""
    return yaml.load(text, _Loader)


def dump_yaml(data: Any) -> str:
    """Return the text of plain dictionaries and lists, in their own order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_value(text: str) -> Any:
    """Return the value that one word spells, or the word itself."""
    try:
        return load_yaml(text)
    except yaml.YAMLError:
        return text


class _Loader(yaml.SafeLoader):
    """Plain values as in YAML 1.2: `1e4` is a number; `no`, `007` and `2024-01-01` are words.

    A key that is given twice is an error.
    """

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
# tag, pattern, and the characters that a value of the kind may begin with
_PLAIN_VALUES = (
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"-?(0|[1-9]\d*)", list("-0123456789")),
    ("float", _FLOAT, list("-.0123456789")),
    ("merge", "<<", ["<"]),
)


def _add_resolvers(reader: type[_Loader] | type[_Dumper]) -> None:
    for tag, pattern, first in _PLAIN_VALUES:
        whole = re.compile(f"^(?:{pattern})$")
        reader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", whole, first)


# none of YAML 1.1
_Loader.yaml_implicit_resolvers = {}
_add_resolvers(_Loader)
_add_resolvers(_Dumper)
