"""Wheel and source distribution: complete, the same, and able to run without the checkout."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

import mcit
from mcit.reports.extras import LIBRARIES

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# Where the files of the checkout are found in the package.
FOLDERS = {"mcit": "mcit", "tasks": "mcit/tasks", "configs": "mcit/configs"}
KEPT = (".py", ".yaml", ".json", ".typed", ".safetensors", ".txt", ".css", ".js", ".html")
# what a reader of the source distribution expects next to the code
TOOLS = ("mkdocs.yml", ".pre-commit-config.yaml")
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff")


def shipped() -> set[str]:
    """What the package must hold: all code, configurations, data and the small model."""
    names = set()
    for folder, inside in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            kept = path.suffix in KEPT or "vilt" in path.parts
            if path.is_file() and kept and "__pycache__" not in path.parts:
                names.add(f"{inside}/{path.relative_to(ROOT / folder).as_posix()}")
    return names


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    settings = {
        key: value for key, value in os.environ.items() if key != "PYTHONPATH"
    } | environment
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )


def build(source: Path, kind: str, out: Path) -> Path:
    done = run(
        "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source, cwd=out.parent
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (built,) = out.iterdir()
    return built


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy, so that building leaves nothing in the checkout and finds nothing of an earlier
    build."""
    folder = tmp_path_factory.mktemp("source") / "mcit"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in (".ci", ".github", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", *TOOLS, *PAGES):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return build(source, "wheel", tmp_path_factory.mktemp("wheel") / "dist")


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory) -> Path:
    return build(source, "sdist", tmp_path_factory.mktemp("sdist") / "dist")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed") / "site"
    options = [
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--disable-pip-version-check",
        "--target",
        folder,
    ]
    done = run("-m", "pip", "install", *options, wheel, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_package_folder_is_listed():
    found = {"mcit"}
    for folder, inside in FOLDERS.items():
        found |= {
            f"{inside}/{path.parent.relative_to(ROOT / folder).as_posix()}".removesuffix(
                "/."
            ).replace("/", ".")
            for path in (ROOT / folder).rglob("__init__.py")
        }
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(found)


def test_the_version_is_written_once():
    assert PROJECT["project"]["version"] == mcit.__version__


def test_the_program_is_what_it_says():
    assert PROJECT["project"]["scripts"] == {"mcit": "mcit.cli:main"}
    assert PROJECT["project"]["requires-python"] == ">=3.10"
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def list_dependencies() -> list[str]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    return [*project["dependencies"], *(line for lines in extras for line in lines)]


def read_names(lines: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", line)[0].lower() for line in lines}


def test_the_core_is_light_and_the_extras_hold_the_rest():
    core = read_names(PROJECT["project"]["dependencies"])
    extras = PROJECT["project"]["optional-dependencies"]
    assert read_names(extras["report"]) == set(LIBRARIES)
    assert not core & {*LIBRARIES, "tensorboard", "wandb", "pytest", "mypy", "mkdocs-material"}
    assert not core & {"ray", "submitit", "mlflow-skinny"}
    assert {"report", "sweep", "ray", "slurm", "trackers", "docs", "test", "dev"} <= extras.keys()
    # an extra that names others names them as they are called
    for line in (line for lines in extras.values() for line in lines):
        for name in re.findall(r"mcit\[([\w,]+)\]", line):
            assert set(name.split(",")) <= extras.keys(), line


def test_only_reports_and_studies_import_what_the_extra_brings():
    users = {path for name, path in list_libraries(every=True) if name in LIBRARIES}
    folders = {Path(path).relative_to(ROOT).parts[:2] for path in users}
    assert folders == {("mcit", "reports"), ("mcit", "studies")}


def test_the_project_says_where_it_lives_and_who_made_it():
    project = PROJECT["project"]
    assert project["authors"] == [{"name": "The mcit authors"}]
    assert {"Homepage", "Repository", "Documentation", "Changelog", "Issues"} <= project[
        "urls"
    ].keys()
    assert all(address.startswith("https://") for address in project["urls"].values())
    assert "Typing :: Typed" in project["classifiers"]
    assert (ROOT / "mcit" / "py.typed").is_file()


def test_dependencies_come_from_the_index_and_from_no_address():
    assert [line for line in list_dependencies() if "@" in line or "://" in line] == []
    assert [name for name in PROJECT["tool"] if name in ("uv", "poetry", "pip")] == []


# modules that are not called like their package
PACKAGES = {"PIL": "pillow", "mlflow": "mlflow-skinny", "yaml": "pyyaml"}


def list_libraries(every: bool = False) -> list[tuple[str, str]]:
    """The libraries that mcit imports, each with a file that does, or with every such file."""
    found = []
    for path in [*(ROOT / "mcit").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                if top != "mcit" and top not in sys.stdlib_module_names:
                    found.append((PACKAGES.get(top, top), str(path)))
    return found if every else list(dict(found).items())


def test_every_library_that_is_imported_is_a_dependency():
    declared = read_names(list_dependencies())
    assert [(name, file) for name, file in list_libraries() if name not in declared] == []


@pytest.mark.slow
def test_the_wheel_holds_everything_that_ships(wheel):
    names = names_in(wheel)
    assert shipped() - names == set()
    for name in (
        "mcit/tasks/vqa.py",
        "mcit/configs/climb.yaml",
        "mcit/configs/efcil/cifar100-mini.yaml",
    ):
        assert name in names
    for name in (
        "mcit/py.typed",
        "mcit/data/imagenet_subset.json",
        "mcit/reproduce/baselines.json",
        "mcit/reports/page.css",
    ):
        assert name in names
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_wheel_puts_one_name_only_into_site_packages(wheel):
    tops = {name.split("/")[0] for name in names_in(wheel)}
    assert tops == {"mcit", f"mcit-{mcit.__version__}.dist-info"}
    assert not [
        name for name in names_in(wheel) if name.startswith("mcit/tests") or "__pycache__" in name
    ]


@pytest.mark.slow
def test_the_wheel_says_what_the_project_says(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        text = archive.read(name).decode()
    assert "Author: The mcit authors" in text
    for label, address in PROJECT["project"]["urls"].items():
        assert f"Project-URL: {label}, {address}" in text
    required = re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)
    core = read_names([line for line in required if "extra ==" not in line])
    assert "torch" in core
    assert not core & set(LIBRARIES)
    assert any(line.startswith("matplotlib") and "report" in line for line in required)


@pytest.mark.slow
def test_an_index_would_take_both_distributions(wheel, sdist, tmp_path):
    pytest.importorskip("twine")
    done = run("-m", "twine", "check", "--strict", wheel, sdist, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"mcit-{mcit.__version__}"
    for name in (
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "mcit/py.typed",
        "mcit/data/imagenet_subset.json",
        "examples/plain_pytorch.py",
        "examples/embedded_benchmark.ipynb",
        ".ci/run",
        ".github/workflows/ci.yml",
        *TOOLS,
        *PAGES,
    ):
        assert (unpacked / name).is_file()
    for name in ("tasks/vqa.py", "configs/climb.yaml", "configs/efcil/cifar100-mini.yaml"):
        assert (unpacked / name).is_file()
    assert names_in(build(unpacked, "wheel", tmp_path / "dist")) == names_in(wheel)


@pytest.mark.slow
def test_the_installed_package_runs_where_nothing_else_is(installed, tmp_path):
    for argv, words in ((["--help"], "usage: mcit"), (["--version"], mcit.__version__)):
        done = run("-m", "mcit", *argv, cwd=tmp_path, PYTHONPATH=str(installed))
        assert (done.returncode, done.stderr) == (0, "")
        assert words in done.stdout
    done = run("-m", "mcit", "list", cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    for name in ("vqa", "snli-ve", "shapes", "ewc_dr", "adapters"):
        assert name in done.stdout
    code = "import mcit, mcit.tasks.vqa\n"
    code += "from mcit.config.files import find_config\n"
    code += "print(mcit.__file__, mcit.tasks.vqa.__file__, find_config('efcil/cifar100-mini'))"
    done = run("-c", code, cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    assert all(Path(line).is_relative_to(installed) for line in done.stdout.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_installed_package_answers_bad_input_as_the_checkout_does(installed, tmp_path):
    argv = ["run", "--order", "nlvr", "--config", "climb", "--method", "ewcc"]
    done = run(
        "-m", "mcit", *argv, cwd=tmp_path, PYTHONPATH=str(installed), MCIT_CACHE=str(tmp_path)
    )
    assert done.returncode == 2
    assert "did you mean 'nlvr2'?" in done.stderr
    assert "did you mean 'ewc'?" in done.stderr
    assert "Traceback" not in done.stderr
