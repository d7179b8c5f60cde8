"""Python files read without running them, since running one needs torch, which takes seconds."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import mcit
from mcit.errors import McitError

# bases that bring no fields and are not mcit's own
PLAIN_BASES = ("ABC", "object")


class BadFile(McitError, TypeError):
    """A file of a task or method that cannot be used; the message names it, and the line if any."""


@dataclass(frozen=True)
class Place:
    """Where a class is defined."""

    path: Path
    name: str


@dataclass(frozen=True)
class Field:
    """A field of a dataclass."""

    name: str
    # where the fields of its own value are declared, if it has any
    section: Place | None


def read_summary(path: Path) -> str:
    """Return the first line of a file's docstring; an empty text if it has none."""
    text = ast.get_docstring(_parse(path)) or ""
    return text.partition("\n")[0].strip()


def read_fields(place: Place) -> dict[str, Field] | None:
    """Return the fields of a dataclass in their order, or None if the files do not say."""
    node = _find_class(place)
    if node is None:
        return None
    fields: dict[str, Field] = {}
    for base in node.bases:
        inherited = _read_base(place.path, base)
        if inherited is None:
            return None
        fields |= inherited
    if _is_dataclass(node):
        fields |= {field.name: field for field in _list_own_fields(place.path, node)}
    return fields


def read_attribute(place: Place, name: str) -> ast.expr | None:
    """Return what a class or the nearest of its ancestors assigns to a name, as it is written."""
    for owner in (place, *list_ancestors(place)):
        node = _find_class(owner)
        for statement in [] if node is None else node.body:
            if isinstance(statement, ast.Assign):
                targets = statement.targets
            elif isinstance(statement, ast.AnnAssign):
                targets = [statement.target]
            else:
                continue
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if name in names and statement.value is not None:
                return statement.value
    return None


def find_heirs(path: Path, ancestor: Place) -> list[Place]:
    """Return the classes of a file that inherit from `ancestor`."""
    classes = [
        Place(path, node.name) for node in _parse(path).body if isinstance(node, ast.ClassDef)
    ]
    return [place for place in classes if ancestor in list_ancestors(place)]


def list_ancestors(place: Place) -> list[Place]:
    """Return the classes that a class inherits from, as far as files of mcit and the user tell."""
    node = _find_class(place)
    names = (
        [base.id for base in node.bases if isinstance(base, ast.Name)] if node is not None else []
    )
    found = [_resolve(place.path, name) for name in names]
    parents = [parent for parent in found if parent is not None]
    return [*parents, *(ancestor for parent in parents for ancestor in list_ancestors(parent))]


def defines(place: Place, function: str) -> bool:
    """Whether a class itself defines a function of that name."""
    node = _find_class(place)
    body = [] if node is None else node.body
    return any(
        isinstance(statement, ast.FunctionDef) and statement.name == function for statement in body
    )


def find_module(name: str) -> Path | None:
    """Return the file of one of mcit's modules or of the user's; None of any other."""
    package, _, last = name.rpartition(".")
    if name.partition(".")[0] != "mcit":
        return None
    # a package that is loaded knows more folders than its own: those of the user
    loaded = sys.modules.get(package)
    own = Path(mcit.__file__).parent.joinpath(*package.split(".")[1:])
    folders = [own] if loaded is None else [Path(folder) for folder in loaded.__path__]
    files = [
        file
        for folder in folders
        for file in (folder / f"{last}.py", folder / last / "__init__.py")
    ]
    return next((file for file in files if file.is_file()), None)


def explain_syntax(error: SyntaxError) -> BadFile:
    """Return the error that names file, line and text of a slip."""
    text = f" at `{error.text.strip()}`" if error.text else ""
    return BadFile(f"{error.filename}, line {error.lineno}: {error.msg}{text}; fix the file")


@lru_cache(maxsize=256)
def _parse_text(text: bytes, path: Path) -> ast.Module:
    try:
        return ast.parse(text, filename=str(path))
    except SyntaxError as error:
        raise explain_syntax(error) from None
    except ValueError as error:
        raise BadFile(f"{path} is not a valid Python file: {error}") from None


def _parse(path: Path) -> ast.Module:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    return _parse_text(text, path)


def _find_class(place: Place) -> ast.ClassDef | None:
    nodes = [node for node in _parse(place.path).body if isinstance(node, ast.ClassDef)]
    return next((node for node in nodes if node.name == place.name), None)


def _resolve(path: Path, name: str) -> Place | None:
    """Return where the class that a file calls `name` is defined; None outside of mcit."""
    for node in _parse(path).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Place(path, name)
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    module = find_module(node.module)
                    return None if module is None else _resolve(module, alias.name)
    return None


def _read_base(path: Path, base: ast.expr) -> dict[str, Field] | None:
    if not isinstance(base, ast.Name):
        return None
    if base.id in PLAIN_BASES:
        return {}
    place = _resolve(path, base.id)
    return None if place is None else read_fields(place)


def _list_own_fields(path: Path, node: ast.ClassDef) -> Iterator[Field]:
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        words = {part.id for part in ast.walk(statement.annotation) if isinstance(part, ast.Name)}
        if words & {"ClassVar", "InitVar"} or _is_left_out(statement.value):
            continue
        yield Field(statement.target.id, _find_section(path, sorted(words)))


def _find_section(path: Path, words: list[str]) -> Place | None:
    """Return the dataclass that an annotation names, where it names exactly one."""
    places = [_resolve(path, word) for word in words]
    nodes = [(place, _find_class(place)) for place in places if place is not None]
    sections = [place for place, node in nodes if node is not None and _is_dataclass(node)]
    return sections[0] if len(sections) == 1 else None


def _is_left_out(value: ast.expr | None) -> bool:
    """Whether a field is `field(init=False, ...)`."""
    if not isinstance(value, ast.Call):
        return False
    return any(
        keyword.arg == "init"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
        for keyword in value.keywords
    )


def _is_dataclass(node: ast.ClassDef) -> bool:
    marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list]
    # `@dataclass`, or `@dataclasses.dataclass`
    names = [
        mark.attr if isinstance(mark, ast.Attribute) else getattr(mark, "id", None)
        for mark in marks
    ]
    return "dataclass" in names
