"""Imports go one way: a file knows those of its own layer and of the layers below it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the ground up; what stands on one line may know each other, without circles.
LAYERS = [
    "printable errors spelling files memory sources metrics draws",
    "registry",
    "config",
    "arguments parallel task",
    "estimator answer_scores gradients named_tensors importance diagnosis path_integral "
    "consolidation class_importance class_statistics classifier method composite "
    "transport",
    "data embedded",
    "models",
    "consolidating projecting fresh_pairs prototypes classifiers transports answering",
    "methods",
    "training",
    "checkpoint provenance runner",
    "session",
    "sequence",
    "api export callback doctor",
    "reports",
    "sweeps bench",
    "reproduce studies",
    "commands",
    "cli",
    "__main__",
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
# packages that hold nothing but data, and the version in mcit/__init__.py
GROUND = {"mcit", "configs"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "mcit" else ("mcit", *parts))


SOURCES = {
    module_name(path): ast.parse(path.read_text(encoding="utf-8"))
    for folder in ("mcit", "tasks")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def imports(module: str) -> Iterator[str]:
    """Modules of mcit that a module imports, early or late; those for a type checker only are not."""
    for node in walk_at_run_time(SOURCES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "mcit")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} has a relative import; write the whole name"
            if node.module and node.module.split(".")[0] == "mcit":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in SOURCES else node.module


def walk_at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from walk_at_run_time(child)


def layer_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "mcit"


LAYERED = [name for name in SOURCES if "." in name and layer_of(name) != "tasks"]


def test_every_file_has_its_layer():
    assert {layer_of(name) for name in LAYERED} - GROUND == set(LEVEL)


@pytest.mark.parametrize("module", LAYERED)
def test_a_file_knows_only_its_own_layer_and_those_below(module):
    found = {layer_of(name) for name in imports(module)} - GROUND
    above = {name for name in found if LEVEL[name] > LEVEL[layer_of(module)]}
    assert not above, f"{module} imports {', '.join(sorted(above))}, which stands above it"


@pytest.mark.parametrize("unit", [str, layer_of], ids=["files", "packages"])
def test_there_are_no_circles(unit):
    graph: dict[str, set[str]] = {}
    for name in SOURCES:
        known = graph.setdefault(unit(name), set())
        known |= {unit(other) for other in imports(name)} - {unit(name)}
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("module", [name for name in SOURCES if name.startswith("mcit.tasks.")])
def test_a_task_knows_the_contract_the_data_and_the_configuration_only(module):
    allowed = {"task", "data", "embedded", "config", "errors"}
    assert {layer_of(name) for name in imports(module)} <= allowed


def test_only_the_registry_knows_tasks_by_name():
    for module, tree in SOURCES.items():
        if layer_of(module) in ("tasks", "registry"):
            continue
        assert "tasks" not in map(layer_of, imports(module)), module
        texts = [
            n.value
            for n in ast.walk(tree)
            if isinstance(n, ast.Constant) and isinstance(n.value, str)
        ]
        assert not [text for text in texts if text.startswith("mcit.tasks")], module


def test_no_file_but_the_reader_that_runs_nothing_knows_pickles():
    users = {
        module
        for module, tree in SOURCES.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and "pickle" in [alias.name for alias in node.names] + [getattr(node, "module", None)]
    }
    assert users == {"mcit.data.pickled_arrays"}


@pytest.mark.parametrize(
    "code",
    [
        "import mcit, mcit.cli; mcit.__version__",
        "from mcit.cli import main; main([])",
        "from mcit.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from mcit.cli import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_help_does_not_wait_for_torch(code):
    check = (
        "import sys; heavy = {'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules)\n"
    )
    check += "assert not heavy, heavy"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_everything_that_mcit_exports_is_there():
    import mcit

    for name in mcit.__all__:
        assert getattr(mcit, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Consolidator'"):
        _ = mcit.Consolidator


def test_the_public_names_are_seen_before_they_are_used():
    """In a process of its own, where nothing was used yet; `help` is what shows them to a
    newcomer."""
    code = (
        "import sys, mcit; assert set(mcit.__all__) <= set(dir(mcit)); assert "
        "'import_module' not in dir(mcit)\n"
    )
    code += "assert 'torch' not in sys.modules; help(mcit)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    import mcit

    assert [name for name in mcit.__all__ if name not in done.stdout] == []


def test_a_type_checker_finds_every_public_name():
    import mcit

    (block,) = [node for node in SOURCES["mcit"].body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    told = {alias.asname: node.module for node in block.body for alias in node.names}
    assert told == mcit._EXPORTS


def test_a_wrong_option_of_a_call_is_not_said_to_be_of_a_configuration():
    import mcit

    with pytest.raises(ValueError, match="score") as error:
        mcit.Estimator(score="plane")
    assert "configuration" not in str(error.value)
