"""Wheel and source distribution: complete, alike, and able to run where nothing else of the checkout is."""

from __future__ import annotations

import os
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

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# Where the files of the checkout are found in the package.
FOLDERS = {"mcit": "mcit", "tasks": "mcit/tasks", "configs": "mcit/configs"}


def shipped() -> set[str]:
    """What the package must hold: all code, configurations, data and the small model."""
    names = set()
    for folder, inside in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            kept = (
                path.suffix in (".py", ".yaml", ".json", ".typed", ".safetensors", ".txt")
                or "vilt" in path.parts
            )
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
    """A copy, so that building leaves nothing in the checkout, nor finds anything that an earlier build left there."""
    folder = tmp_path_factory.mktemp("source") / "mcit"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        if (ROOT / name).is_file():
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


def test_the_version_is_told_once():
    assert PROJECT["project"]["version"] == mcit.__version__


def test_the_program_is_what_it_says():
    assert PROJECT["project"]["scripts"] == {"mcit": "mcit.cli:main"}
    assert PROJECT["project"]["requires-python"] == ">=3.10"
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_no_machine_and_no_second_index_is_named_in_the_project():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "://" not in text
    assert "@" not in "".join(PROJECT["project"]["dependencies"])


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
    for name in ("mcit/py.typed", "mcit/data/imagenet_subset.json"):
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
    code = "import mcit, mcit.tasks.vqa, mcit.configs, mcit.commands.run\n"
    code += "print(mcit.__file__, mcit.tasks.vqa.__file__, mcit.commands.run.find_config('efcil/cifar100-mini'), sep='\\n')"
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
