"""The documentation works as it is written: files are put where it says, commands and code are run."""

from __future__ import annotations

import copy
import doctest
import importlib
import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from doc_pages import DOCS, PAGES, README, ROOT, Desk, read_blocks
from tiny_language_models import llama
from tiny_run import write_world
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import mcit
from mcit.bench import classifiers, consolidation, efcil, start
from mcit.commands.bench import BENCHES
from mcit.errors import ConfigError
from mcit.registry import find_method, own_folders

LANGUAGES = {"python", "sh", "text", "yaml"}
# pages that show the reports of runs which are not made on the page
NEED_RUNS = {"results": "runs/compare", "results-efcil": "runs/reproduce-mini"}
NEED_RUNS |= {"first-run": "runs/compare", "README": "runs/compare"}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> dict[str, str]:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def desk(tmp_path, world, monkeypatch) -> Desk:
    """An empty folder to work in; the packages of tasks and methods are afterwards what they were."""
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    before = set(sys.modules)
    for kind in ("tasks", "methods", "classifiers", "transports"):
        package = importlib.import_module(f"mcit.{kind}")
        monkeypatch.setattr(package, "__path__", list(package.__path__))
    made = Desk(folder, world, monkeypatch)
    monkeypatch.setattr("mcit.api.run", made.run_python)
    _reset_accelerate()
    yield made
    _reset_accelerate()
    for name in set(sys.modules) - before:
        if re.fullmatch(r"mcit\.(tasks|methods|classifiers|transports)\.\w+|small_convnet", name):
            del sys.modules[name]
            package, _, attribute = name.rpartition(".")
            if package:
                vars(sys.modules[package]).pop(attribute, None)


def _reset_accelerate() -> None:
    """Accelerate keeps its settings for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


# --- what the code of a page finds when it begins


def make_points(seed: int = 1) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(64, 6, generator=generator)
    target = (inputs @ torch.randn(6, 3, generator=generator)).argmax(dim=1)
    return DataLoader(TensorDataset(inputs, target), batch_size=16)


def make_sentences(seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(5, 30, (12, 6), generator=generator)
    return [{"input_ids": row, "labels": row[0] % 2} for row in words]


def make_bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=30, max_position_embeddings=8, intermediate_size=16, **sizes)
    return BertForSequenceClassification(config)


def make_classifier() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "loss_function": F.cross_entropy,
        "loader": make_points(),
        "tasks": [make_points(1), make_points(2)],
        "torch": torch,
    }


def prepare_accelerate() -> dict[str, Any]:
    model = make_bert()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": DataLoader(make_sentences(1), batch_size=3),
        "accelerator": Accelerator(gradient_accumulation_steps=2, cpu=True),
    }


def prepare_trainer() -> dict[str, Any]:
    arguments = {"report_to": [], "use_cpu": True, "num_train_epochs": 1}
    return {
        "model": make_bert(),
        "args": TrainingArguments(output_dir="trainer", **arguments),
        "first_loader": DataLoader(make_sentences(1), batch_size=4),
        "second_task": make_sentences(2),
    }


def prepare_language_model() -> dict[str, Any]:
    torch.manual_seed(0)
    model, batch = llama()
    count = len(batch["labels"])
    rows = [{key: value[row] for key, value in batch.items()} for row in range(count)]
    return {"language_model": model, "answers": DataLoader(rows, batch_size=2)}


def prepare_regression() -> dict[str, Any]:
    torch.manual_seed(0)
    regressor = nn.Linear(4, 2)
    return {
        "regressor": regressor,
        "measurements": [(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(3)],
        "adam": torch.optim.Adam(regressor.parameters(), lr=0.01),
    }


def prepare_sharding() -> dict[str, Any]:
    address = {"init_method": f"file://{Path('group').absolute()}", "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **address)
    return make_classifier()


def prepare_manager() -> dict[str, Any]:
    names = make_classifier()
    manager = mcit.ConsolidationManager(names["model"])
    manager.consolidate(mcit.measure_importance(names["model"], names["loader"]))
    return {"manager": manager}


# by page and heading
PREPARE = {
    ("README", "As a library"): make_classifier,
    ("own-loop", "Plain PyTorch"): make_classifier,
    ("own-loop", "Accelerate"): prepare_accelerate,
    ("own-loop", "transformers.Trainer"): prepare_trainer,
    ("own-loop", "LoRA, and language models"): prepare_language_model,
    ("own-loop", "Protect a model that is finished"): prepare_trainer,
    ("own-loop", "Any other loss"): prepare_regression,
    ("own-loop", "Synaptic intelligence"): prepare_regression,
    ("scaling", "Sharded parameters (FSDP)"): prepare_sharding,
    ("faq", "Why is my Fisher zero?"): prepare_manager,
}


def run_page(page: Path, desk: Desk) -> dict[str, Any]:
    """Run all blocks of a page in order; code shares its names. Return those."""
    blocks = read_blocks(page)
    desk.write_files(blocks)
    if page.stem in NEED_RUNS:
        mcit.run("shapes:5x4", output=f"{NEED_RUNS[page.stem]}/example")
    names: dict[str, Any] = {"__name__": page.stem}
    prepared = set()
    for block in blocks:
        if block.language == "sh":
            desk.run_commands(block.text)
        elif block.language == "python" and not block.title and not block.is_session:
            place = (page.stem, block.heading)
            if place in PREPARE and place not in prepared:
                prepared.add(place)
                names.update(PREPARE[place]())
            exec(compile(block.text, page.name, "exec"), names)
    return names


RUN = [page for page in PAGES if any(b.language in ("python", "sh") for b in read_blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page, desk, capsys):
    try:
        run_page(page, desk)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_says_what_it_is(page):
    blocks = read_blocks(page)
    fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks)
    assert {block.language for block in blocks} <= LANGUAGES
    # a command that is shown as text, with what it printed, begins with the prompt
    for block in blocks:
        if block.language == "text" and page.stem != "cli":
            assert not re.match(r"(mcit|python|accelerate|pip) ", block.text), block.text


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.is_session for block in read_blocks(page))],
    ids=lambda page: page.stem,
)
def test_sessions_of_the_interpreter_print_what_they_show(page):
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert failed == 0
    assert tried > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


# --- the loops of the guide do what is said about them


def run_loop(heading: str, **names: Any) -> dict[str, Any]:
    """Run the blocks under a heading of the guide to one's own loop."""
    blocks = [b for b in read_blocks(DOCS / "own-loop.md") if b.heading == heading]
    known = {name: getattr(mcit, name) for name in mcit.__all__}
    found = {**known, **names}
    for block in blocks:
        exec(compile(block.text, "own-loop.md", "exec"), found)
    return found


def is_held(manager: mcit.ConsolidationManager, model: nn.Module) -> bool:
    """Whether every weight of the model has importance, and some of it counts."""
    names = {name for name, _ in model.named_parameters()}
    return manager.importance.keys() == names and any(
        bool(value.any()) for value in manager.importance.values()
    )


def test_the_plain_loop_holds_all_tasks():
    found = run_loop("Plain PyTorch", **make_classifier())
    assert is_held(found["manager"], found["model"])
    assert len(found["manager"].history) == 2


def test_the_accelerate_loop_adds_the_gradient_once_per_real_step(monkeypatch):
    _reset_accelerate()
    added = []
    add = mcit.ConsolidationManager.add_gradient_
    monkeypatch.setattr(
        mcit.ConsolidationManager, "add_gradient_", lambda manager: added.append(add(manager))
    )
    names = prepare_accelerate()
    found = run_loop("Accelerate", **names)
    # of 4 batches
    assert len(added) == 2
    assert is_held(found["manager"], names["model"])
    _reset_accelerate()


def test_the_trainer_holds_what_the_first_task_needs(tmp_path, monkeypatch):
    _reset_accelerate()
    monkeypatch.chdir(tmp_path)
    names = prepare_trainer()
    manager = run_loop("transformers.Trainer", **names)["manager"]
    # it has moved while it was held
    assert float(manager.penalty()) > 0
    again = mcit.ConsolidationManager(names["model"].named_parameters())
    again.load("importance-and-anchor.safetensors")
    assert (again.strength, again.importance.keys()) == (1.0, manager.importance.keys())
    _reset_accelerate()


def test_of_a_language_model_with_lora_only_the_adapters_are_held():
    found = run_loop("LoRA, and language models", **prepare_language_model())
    assert all("lora_" in name for name in found["manager"].importance)
    assert len(found["manager"].importance) == 8


def test_the_loop_of_the_design_page_is_the_one_that_runs():
    (block,) = [b for b in read_blocks(DOCS / "design.md") if b.language == "python"]
    source = (ROOT / "mcit" / "sequence.py").read_text(encoding="utf-8")
    body = block.text[block.text.index("    with ") :]
    assert body in source


# --- pages that are made from the program


def load_script(name: str) -> ModuleType:
    """Return a script of scripts/, without what it does to find mcit in a bare checkout."""
    before = sys.modules.get("_checkout")
    sys.modules["_checkout"] = ModuleType("_checkout")
    path = ROOT / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    # where its dataclasses look for the module that they are in
    sys.modules[name] = module
    spec.loader.exec_module(module)
    del sys.modules[name]
    del sys.modules["_checkout"]
    if before is not None:
        sys.modules["_checkout"] = before
    return module


@pytest.fixture(scope="module")
def make_docs() -> ModuleType:
    return load_script("make_docs")


@pytest.fixture(scope="module")
def show_recorded() -> ModuleType:
    return load_script("show_recorded")


@pytest.fixture(scope="module")
def show_benchmarks() -> ModuleType:
    return load_script("show_benchmarks")


def test_recorded_results_stand_on_the_pages_as_they_were_recorded(show_recorded):
    blocks = 0
    for name in show_recorded.PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        blocks += len(show_recorded.BLOCK.findall(text))
        assert text == show_recorded.fill(text), "run python scripts/show_recorded.py"
    assert blocks >= 4


@pytest.mark.parametrize("name", ["cli", "configuration", "methods", "classifiers", "tasks"])
def test_a_reference_page_is_what_the_program_says(name, make_docs):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert page == make_docs.PAGES[name](), "run python scripts/make_docs.py"


def judge(value: float, goal: tuple[str, float] | None) -> str:
    """Return what the page says of a figure."""
    if goal is None:
        return ""
    direction, limit = goal
    distance = value - limit if direction == "at least" else limit - value
    return "met" if distance >= 0 else "**missed**"


def find_verdicts(page: str) -> dict[str, str]:
    """Return by its label what stands in the last cell of every row."""
    verdicts = {}
    for line in page.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            verdicts[cells[0]] = cells[-1]
    return verdicts


def list_figures(name: str, recorded: dict[str, Any]) -> list[tuple]:
    """Return what a benchmark shows of its recorded results."""
    bench = importlib.import_module(f"mcit.bench.{name}")
    return list(bench.list_figures(recorded[name]["result"]))


@pytest.fixture(scope="module")
def recorded(show_benchmarks) -> dict[str, Any]:
    return show_benchmarks.read_record()


def test_the_benchmarks_page_shows_what_was_recorded(show_benchmarks, recorded):
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert page == show_benchmarks.write_page(recorded), "run python scripts/show_benchmarks.py"


def test_every_benchmark_is_recorded_with_its_machine(show_benchmarks, recorded):
    assert set(recorded) == set(show_benchmarks.SECTIONS) == set(BENCHES)
    for name, measured in recorded.items():
        assert measured["machine"].keys() == show_benchmarks.describe_machine().keys()
        assert measured["result"]["threads"] == show_benchmarks.SECTIONS[name].threads
        # a first look is no result
        assert not measured["result"].get("quick")


@pytest.mark.parametrize("name", BENCHES)
def test_every_figure_of_a_benchmark_is_recorded(name, recorded):
    found = list_figures(name, recorded)
    labels = [label for label, _, _ in found]
    assert labels
    assert len(set(labels)) == len(labels)
    assert all(math.isfinite(value) and value > 0 for _, value, _ in found)


def test_what_the_goals_name_is_recorded(recorded):
    result = recorded["efcil"]["result"]
    widths = {str(width) for width in efcil.FULL}
    assert result["train_speedup"].keys() == result["eval_speedup"].keys() == widths
    assert recorded["start"]["result"]["over_import_torch"].keys() == start.GOALS.keys()
    networks = {f"resnet18 w{width}" for width in consolidation.WIDTHS}
    assert recorded["consolidation"]["result"]["channels_last"].keys() == networks
    fits = recorded["classifiers"]["result"]["fit_over_epoch"]
    assert fits.keys() >= set(classifiers.CLOSED_FORMS)


@pytest.mark.parametrize("name", BENCHES)
def test_every_goal_is_shown_as_met_or_missed(name, show_benchmarks, recorded):
    page = "\n".join(show_benchmarks.SECTIONS[name].write(recorded[name]["result"]))
    verdicts = find_verdicts(page)
    for label, value, goal in list_figures(name, recorded):
        assert verdicts[label] == judge(value, goal), label


def test_a_goal_that_is_missed_is_shown_as_missed(show_benchmarks, recorded):
    result = recorded["generative"]["result"]
    label = "bytes held per LoRA weight"
    for value, verdict in ((8.0, "met"), (8.001, "**missed**")):
        page = show_benchmarks.write_generative({**result, "bytes_per_weight": value})
        assert find_verdicts("\n".join(page))[label] == verdict


@pytest.fixture
def bench_files(tmp_path, monkeypatch, show_benchmarks, recorded) -> dict[str, Any]:
    """Return what is recorded, and have files of their own for it; nothing is measured."""
    monkeypatch.setattr(show_benchmarks, "RECORD", tmp_path / "benchmarks.json")
    monkeypatch.setattr(show_benchmarks, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(show_benchmarks, "measure", lambda name: recorded[name])
    return recorded


def test_all_benchmarks_are_measured_unless_some_are_named(show_benchmarks, bench_files):
    show_benchmarks.main(["--measure"])
    assert list(show_benchmarks.read_record()) == list(show_benchmarks.SECTIONS)
    page = show_benchmarks.PAGE.read_text(encoding="utf-8")
    assert page == show_benchmarks.write_page(bench_files)


def test_one_benchmark_is_measured_and_the_others_stay(show_benchmarks, bench_files, monkeypatch):
    show_benchmarks.main(["--measure"])
    again = copy.deepcopy(bench_files["start"])
    again["machine"]["processor"] = "another processor"
    monkeypatch.setattr(show_benchmarks, "measure", {"start": again}.__getitem__)
    show_benchmarks.main(["--measure", "start"])
    assert show_benchmarks.read_record() == {**bench_files, "start": again}
    page = show_benchmarks.PAGE.read_text(encoding="utf-8")
    assert page.count("another processor") == 1


def test_what_is_measured_before_an_interruption_is_recorded(
    show_benchmarks, bench_files, monkeypatch
):
    def measure(name: str) -> dict[str, Any]:
        if name == "classifiers":
            raise KeyboardInterrupt
        return bench_files[name]

    monkeypatch.setattr(show_benchmarks, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        show_benchmarks.main(["--measure"])
    assert list(show_benchmarks.read_record()) == ["consolidation", "efcil"]
    with pytest.raises(SystemExit, match="no results of classifiers, loading, generative, start"):
        show_benchmarks.main([])


def test_an_unknown_benchmark_is_refused(show_benchmarks, bench_files, capsys):
    with pytest.raises(SystemExit):
        show_benchmarks.main(["--measure", "strat"])
    assert "invalid choice: 'strat'" in capsys.readouterr().err
    assert not show_benchmarks.RECORD.exists()


def test_a_benchmark_is_measured_in_a_process_with_its_threads(show_benchmarks, monkeypatch):
    asked = []

    def run(command, env, **options):
        asked.append((command[1:], env["OMP_NUM_THREADS"]))
        return subprocess.CompletedProcess(command, 0, stdout='{"threads": 2}')

    # what git says of the checkout is asked for in the same way
    machine = show_benchmarks.describe_machine()
    monkeypatch.setattr(show_benchmarks, "describe_machine", lambda: machine)
    monkeypatch.setattr(show_benchmarks.subprocess, "run", run)
    measured = show_benchmarks.measure("efcil")
    assert asked == [(["-m", "mcit", "bench", "efcil", "--json"], "2")]
    assert measured == {"machine": machine, "result": {"threads": 2}}


# --- the site


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e '.[docs]'")
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING -" not in done.stderr
    reference = (tmp_path / "api" / "index.html").read_text(encoding="utf-8")
    assert "mcit.api.run" in reference
    assert "mcit.method.Method.classifier" in reference


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    shown = {line.rpartition(".")[2] for line in page.splitlines() if line.startswith("::: ")}
    assert set(mcit.__all__) <= shown


# --- files of one's own


def test_mcit_path_adds_the_users_own_files(tmp_path):
    for name in ("tasks/pets.py", "methods/gentle.py"):
        (tmp_path / "mine" / name).parent.mkdir(parents=True)
        (tmp_path / "mine" / name).write_text("")
    environment = {**os.environ, "MCIT_PATH": "mine"}
    command = [sys.executable, "-m", "mcit", "list"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert {"pets", "gentle"} <= set(listed)


def test_a_folder_of_ones_own_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("MCIT_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="nowhere', which has no folder tasks or methods"):
        own_folders("tasks")
    monkeypatch.delenv("MCIT_PATH")
    assert own_folders("tasks") == []


def test_a_name_that_ships_cannot_be_taken(desk):
    (desk.folder / "methods").mkdir()
    (desk.folder / "methods" / "ewc.py").write_text("")
    importlib.import_module("mcit.methods").__path__.append(str(desk.folder / "methods"))
    with pytest.raises(
        ConfigError, match=r"'ewc' is in two files, .*ewc\.py and .*ewc\.py: a name is one file"
    ):
        find_method("ewc")


def test_the_front_page_is_among_the_pages():
    assert README in RUN
