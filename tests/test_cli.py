"""The command line: what it prints, what it refuses, and in which words."""

from __future__ import annotations

import errno
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mcit.methods
from mcit.arguments import Parser
from mcit.cli import main
from mcit.commands.run import add_options, read_config
from mcit.config.files import list_recipes, read_yaml
from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.errors import McitError
from mcit.registry import CATEGORIES, METHOD, find_method, list_names
from mcit.training.trainer import Trainer

ROOT = Path(__file__).parent.parent
TINY = ["--order", "shapes:2x1", "--quiet"]
for _change in (
    "model.width=4",
    "tasks.shapes.classes=2",
    "tasks.shapes.first_epochs=1",
    "tasks.shapes.later_epochs=1",
):
    TINY += ["--set", _change]


# their network starts at random, and has no LoRA
NEEDS_LORA = [name for name in list_names(METHOD) if find_method(name).needs_lora]
ONLY_PAIRS = ("adapters", "freeze_bottom", "single", *NEEDS_LORA)


# what a method cannot do without: images from elsewhere; distances summed over a batch, small steps
DOCS = Path(__file__).parent.parent / "docs"
NEEDED = {"muc": ["--set", f"method.outside={DOCS}"], "ssre": ["--recipe", "adam"]}


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch) -> Path:
    """An empty working directory; the cache is beside it. Figures take seconds to draw and have
    tests of their own."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setattr("mcit.reports.figures.write_figures", lambda *options: [])
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    return folder


def refuse(capsys, *argv: str) -> str:
    """The message on stderr of a command that must fail with code 2, and print nothing else
    there."""
    assert main(argv) == 2
    message = capsys.readouterr().err
    assert message.startswith("mcit: ")
    assert "Traceback" not in message
    return message


def config_of(*argv: str):
    parser = Parser()
    add_options(parser)
    return read_config(parser.parse_args(argv))


# --- what needs no run


def test_without_a_command_help_is_printed(capsys):
    assert main([]) == 0
    assert "usage: mcit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--help"], ["run", "bench", "list", "--version"]),
        (
            ["run", "--help"],
            ["--order", "--method", "--config", "--data-root", "--set", "--dry-run", "--overwrite"],
        ),
        (["bench", "--help"], ["consolidation", "--json"]),
    ],
)
def test_help_names_what_there_is(capsys, argv, words):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert [word for word in words if word not in printed] == []


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"mcit {mcit.__version__}\n"


def test_list_says_in_a_line_what_everything_that_has_a_name_does(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out.splitlines()
    rows = [line.split(maxsplit=1) for line in printed if line.startswith("  ")]
    expected = [name for category in CATEGORIES for name in list_names(category)]
    assert [name for name, _ in rows] == [*expected, *list_recipes()]
    named = dict(rows)
    assert named["finetune"] == (
        "Plain finetuning, task after task: nothing is protected, the lower bound."
    )
    assert named["nlvr2"] == "NLVR2: is a statement true of a pair of images?"


@pytest.mark.parametrize(
    "argv", [["walk"], ["run", "--ordr", "vqa"], ["bench", "speech"], ["run", "--seed", "one"]]
)
def test_a_misspelt_command_exits_with_code_2(capsys, argv):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


# --- bad input: one clear message, code 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no tasks are given: use --order"),
        (["--order", "nlvr"], "unknown task 'nlvr'; did you mean 'nlvr2'? (tasks: "),
        (
            ["--order", "shapes:5x4", "--method", "ewcdr"],
            "unknown method 'ewcdr'; did you mean 'ewc_dr'? (methods: ",
        ),
        (
            ["--order", "shapes:5x4", "--set", "training.worker=2"],
            "unknown key 'training.worker'; did you mean",
        ),
        (
            ["--order", "shapes:5x4", "--set", "training.workers=two"],
            "'training.workers' must be a whole number",
        ),
        (["--order", "shapes:5x4", "--set", "seed"], "override 'seed' is not of the form"),
        (
            ["--order", "shapes:5x4", "--set", "training.log_every=0"],
            "'log_every' must be at least 1",
        ),
        (["--order", "shapes:5x4", "--seed", "-1"], "'seed' must be from 0"),
        (
            ["--order", "shapes:5x4", "--method", "ewc", "--set", "method.strenth=1"],
            "did you mean 'strength'?",
        ),
        (["--order", "shapes:5x4", "--set", "tasks.shapes.clases=4"], "did you mean 'classes'?"),
        (
            ["--order", "shapes:3x3"],
            "split 'shapes:3x3' stands for 9 classes where shapes has 20 (for 20 classes: ",
        ),
        (
            ["--order", "shapes:many"],
            "split 'shapes:many' is neither TASKSxSIZE nor START+TASKSxSIZE",
        ),
        (["--order", "shapes"], "'shapes' needs a split, such as shapes:"),
        (["--order", "vqa:5x4"], "task 'vqa' takes no split"),
        (["--order", "vqa,vqa"], "tasks given twice in the order: vqa"),
        (["--order", "vqa,shapes:5x4"], "cannot be mixed in one order"),
        (["--order", "vqa", "--set", "model.name=resnet18"], "'resnet18', which reads no text"),
        (
            ["--order", "shapes:5x4", "--set", "model.name=embedded"],
            "'embedded', a ViLT; use 'resnet18' for shapes, or an image model",
        ),
        (["--order", "vqa", "--data-root", "nowhere"], "--data-root 'nowhere' is not a directory"),
        (["--order", "cifar100:10x10"], "no data root given: CIFAR-100 is"),
        (
            ["--order", "shapes:5x4", "--method", "lwf", "--set", "model.name=embedded"],
            "use 'resnet18' for shapes",
        ),
        (
            ["--order", "vqa,vcr", "--set", "model.name=resnet18"],
            "'resnet18', which reads no text; use a ViLT for vqa, vcr",
        ),
        (["--order", "vqa,vcr", "--set", "model.width=16"], "model.width is an option of resnet18"),
        (
            ["--order", "shapes:5x4", "--method", "single"],
            "class-incremental tasks share one: use 'joint'",
        ),
        (
            ["--order", "shapes:5x4", "--method", "joint", "--set", "method.x=1"],
            "method 'joint' has no options, found 'method.x'",
        ),
        (
            ["--order", "vqa", "--set", "tasks.vqa.recipe.betas=0.9,1.5"],
            "recipe.betas must be at least 0 and below 1",
        ),
        (
            ["--order", "vqa", "--single", "nowhere"],
            "'single' names 'nowhere', which has no scores.json",
        ),
        (["--resume", "--output", "nowhere"], "nothing to resume in nowhere; pass --order"),
        (
            ["--order", "shapes:5x4", "--method", "ewc", "--set", "method.strength=1e308"],
            "'method.strength' must be a fi",
        ),
        (
            ["--order", "shapes:5x4", "--set", "tasks.shapes.schedule_scale=.nan"],
            "schedule_scale' must be a finite",
        ),
        (
            ["--order", "vqa", "--method", "adapters", "--set", "method.alpha=.nan"],
            "'method.alpha' must be a finite",
        ),
        (
            ["--order", "shapes:5x4", "--set", "training.mixed_precision=fp16"],
            "accelerate does not support on a CPU",
        ),
        (
            ["--order", "shapes:5x4", "--output", "a\0b"],
            "'output' is 'a\\x00b', and a folder's name cannot hold",
        ),
        (
            ["--order", "shapes:5x4", "--output", "a\udcff"],
            "'output' is 'a\\udcff', which is not valid UTF-8",
        ),
        (["--config", "nowhere.yaml"], "no configuration file 'nowhere.yaml'"),
        (["--config", "climbb"], "no configuration file 'climbb'; did you mean 'climb'?"),
    ],
)
def test_bad_input_is_one_clear_message(capsys, tmp_path, somewhere, argv, words):
    assert words in refuse(capsys, "run", *argv)
    assert list(somewhere.iterdir()) == []
    assert not (tmp_path / "cache").exists()  # no benchmark was made for a run that cannot be


def test_an_empty_data_root_is_answered_with_files_and_remedy(capsys, tmp_path):
    message = refuse(capsys, "run", "--order", "nlvr2,snli-ve", "--data-root", str(tmp_path))
    for words in (
        "nlvr2/data/train.json is missing; unpack NLVR2",
        "snli_ve_train.jsonl is missing; put snli_ve_",
    ):
        assert words in message


def test_a_malformed_configuration_file_is_named(capsys, somewhere):
    (somewhere / "mine.yaml").write_text("order: [shapes:5x4\n")
    assert "mine.yaml is not valid YAML" in refuse(capsys, "run", "--config", "mine.yaml")


@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_a_folder_of_runs_without_a_name_is_refused(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--output", ""])
    assert stopped.value.code == 2
    assert "expected a word, found an empty one" in capsys.readouterr().err


def test_without_a_home_a_cache_must_be_named(capsys, monkeypatch):
    """As in a container whose user has no entry in the list of users."""

    def find_none(number):
        raise KeyError(number)

    monkeypatch.delenv("MCIT_CACHE")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", find_none)
    assert "set MCIT_CACHE to a folder" in refuse(capsys, "run", *TINY)


def test_a_full_cache_is_named(capsys, tmp_path, monkeypatch):
    def fill(folder, *rest):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mcit.embedded.benchmark.write_benchmark", fill)
    message = refuse(capsys, "run", "--order", "vqa", "--dry-run")
    assert (
        f"No space left on device; the cache is in {tmp_path / 'cache'}: make room there, or set"
        in message
    )


def test_several_problems_come_in_one_message(capsys):
    argv = ["--order", "nlvr,shapes:3x3", "--method", "ewcc", "--data-root", "nowhere"]
    message = refuse(capsys, "run", *argv)
    for words in ("3 problems", "'nlvr'", "'ewcc'", "'nowhere'"):
        assert words in message
    message = refuse(
        capsys,
        "run",
        "--order",
        "vqa:2x2,shapes:3x3",
        "--method",
        "ewc",
        "--set",
        "method.strength=-1",
    )
    for words in ("'vqa' takes no split", "shapes:3x3", "strength must be at least 0"):
        assert words in message
    message = refuse(
        capsys, "run", *argv, "--set", "seed", "--set", "sed=1", "--set", "training.workers=x"
    )
    for words in (
        "'nlvr'",
        "'ewcc'",
        "override 'seed'",
        "'sed'; did you mean 'seed'?",
        "'training.workers'",
    ):
        assert words in message


# --- what the options mean


def test_the_command_line_stands_over_the_file_and_set_over_both(somewhere):
    (somewhere / "mine.yaml").write_text(
        "order: [shapes:5x4]\nseed: 3\nmethod: {name: ewc, strength: 5}\nmodel: {width: 4}\n"
    )
    config = config_of(
        "--config", "mine.yaml", "--seed", "4", "--method", "ewc", "--set", "model.width=2"
    )
    assert config.order == ("shapes:5x4",)
    assert (config.seed, config.model.width) == (4, 2)
    assert config.method.options == {"strength": 5}  # the same method keeps its options
    assert config_of("--config", "mine.yaml", "--method", "mas").method.options == {}
    assert config_of("--config", "mine.yaml", "--seed", "4", "--set", "seed=5").seed == 5


def test_embedded_recipes_are_for_the_embedded_benchmark_only(tmp_path):
    embedded = read_yaml(ROOT / "configs" / "embedded.yaml")["tasks"]
    assert config_of("--order", "vqa,vcr").tasks == embedded
    assert config_of("--set", "order=vqa,vcr").tasks == embedded
    assert config_of("--order", "shapes:5x4").tasks == {}
    assert config_of("--order", "vqa", "--data-root", str(tmp_path)).tasks == {}
    assert config_of("--order", "vqa", "--set", f"data_root={tmp_path}").tasks == {}


def test_a_changed_value_leaves_the_rest_of_an_embedded_recipe(somewhere):
    own = read_yaml(ROOT / "configs" / "embedded.yaml")["tasks"]["vqa"]["recipe"]
    config = config_of("--order", "vqa", "--set", "tasks.vqa.recipe.epochs=1")
    assert config.tasks["vqa"]["recipe"] == {**own, "epochs": 1}
    (somewhere / "mine.yaml").write_text("order: [vqa]\ntasks: {vqa: {recipe: {epochs: 2}}}\n")
    assert config_of("--config", "mine.yaml").tasks["vqa"]["recipe"] == {**own, "epochs": 2}


# --- runs


def test_a_dry_run_prints_a_plan_and_writes_nothing(capsys, tmp_path, somewhere):
    assert (
        main(
            [
                "run",
                "--order",
                "shapes:5x4",
                "--method",
                "ewc",
                "--set",
                "model.width=8",
                "--dry-run",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    for number in range(5):
        assert f"shapes[{4 * number}-{4 * number + 3}]" in printed
    for words in (
        "learning rate",
        "MB/batch",
        "minutes",
        "800",
        "score plain",
        "M parameters",
        "GiB of it for the optimizer",
        "step GiB",
        "GiB for the importance of 4 tasks, a file each (checkpoint.importance=false keeps none)",
        "scoring GiB",
        " of fitting, importance and scoring on this machine",
        "nothing was kept or written",
    ):
        assert words in printed
    assert "…" not in printed
    assert list(somewhere.iterdir()) == []
    # `evaluate` makes empty folders for its metrics
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


BROKEN = """
from dataclasses import dataclass

from mcit.method import Method


@dataclass
class Broken(Method):
    name = "{name}"

    def {hook}:
        raise KeyError("found by a dry run")
"""
HOOKS = [
    "extra_loss(self, stage, batch, logits)",
    "after_step(self, stage, step)",
    "end_task(self, stage)",
    "before_scoring(self, stage, task)",
    "after_scoring(self, stage)",
]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_dry_run_finds_a_mistake_in_a_hook_of_an_own_method(monkeypatch, tmp_path, hook):
    name = f"broken_{hook.partition('(')[0]}"
    (tmp_path / f"{name}.py").write_text(BROKEN.format(name=name, hook=hook))
    # where MCIT_PATH leads, which is read when mcit is imported
    monkeypatch.setattr("mcit.methods.__path__", [*mcit.methods.__path__, str(tmp_path)])
    with pytest.raises(KeyError, match="found by a dry run"):
        main(["run", *TINY, "--method", name, "--dry-run"])


@pytest.mark.parametrize("method", [name for name in list_names(METHOD) if name not in ONLY_PAIRS])
def test_every_method_goes_through_a_dry_run_where_one_head_grows(capsys, somewhere, method):
    words = ["--order", "shapes:2x2", "--set", "tasks.shapes.classes=4", "--set", "model.width=4"]
    words += NEEDED.get(method, [])
    assert main(["run", *words, "--method", method, "--dry-run"]) == 0
    assert "a few steps and the end of every task were tried" in capsys.readouterr().out
    assert list(somewhere.iterdir()) == []


@pytest.mark.parametrize(
    "command", [["run", *TINY], ["sweep", "--order", "shapes:2x1", "--methods", "finetune"]]
)
def test_a_dry_run_refuses_a_stage_cache_that_is_a_file(capsys, somewhere, command):
    (somewhere / "file").write_text("")
    argv = [*command, "--dry-run", "--stage-cache", "file"]
    assert "file is a file; --stage-cache names the folder" in refuse(capsys, *argv)


def test_a_dry_run_looks_at_the_folder_that_the_run_would_have(capsys, somewhere):
    (somewhere / "out" / "checkpoints").mkdir(parents=True)
    assert "out already holds a run" in refuse(capsys, "run", *TINY, "--output", "out", "--dry-run")


def test_the_dry_run_of_a_sweep_looks_for_the_data(capsys):
    message = refuse(
        capsys, "sweep", "--order", "cifar100:10x10", "--methods", "finetune", "--dry-run"
    )
    assert "no data root given: CIFAR-100 is" in message


# --- where a run is put


def test_files_of_somebody_else_in_the_folder_are_mentioned_and_stay(capsys, somewhere):
    (somewhere / "out").mkdir()
    (somewhere / "out" / "notes.txt").write_text("mine")
    assert main(["run", *TINY, "--output", "out"]) == 0
    assert "note: out holds other files too (notes.txt); they stay" in capsys.readouterr().out
    assert (somewhere / "out" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("more", [[], ["--overwrite"], ["--resume"]])
def test_figures_of_somebody_else_are_never_mixed_with_a_runs(capsys, somewhere, more):
    figure = somewhere / "paper" / "figures" / "mine.pdf"
    figure.parent.mkdir(parents=True)
    figure.write_text("mine")
    message = refuse(capsys, "run", *TINY, "--output", "paper", *more)
    assert (
        "paper holds no run, but files in figures/, where a run has its own; choose another "
        "--output" in message
    )
    assert [path.name for path in (somewhere / "paper").rglob("*")] == ["figures", "mine.pdf"]


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/01-done", "importance", "figures"])
@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_what_is_in_the_way_of_a_folder_is_found_before_training(
    capsys, monkeypatch, somewhere, name, kind
):
    path = somewhere / "out" / name
    path.parent.mkdir(parents=True)
    if kind == "file":
        path.write_text("")
    else:
        path.symlink_to("nowhere")
    monkeypatch.setattr(Trainer, "fit", lambda *_, **__: pytest.fail("a task was learned"))
    message = refuse(capsys, "run", *TINY, "--output", "out", "--overwrite")
    assert (
        f"out/{name} is in the way: the run writes a folder of that name; remove or rename it"
        in message
    )


def test_a_run_leaves_what_it_says(capsys, somewhere):
    assert main(["run", *TINY, "--method", "ewc", "--set", "method.strength=1e2"]) == 0
    printed = capsys.readouterr().out
    (folder,) = (somewhere / "runs").iterdir()
    assert folder.name == "shapes-2x1-ewc-seed1"
    written = {path.name for path in folder.iterdir()}
    assert written >= {
        "scores.json",
        "report.md",
        "report.html",
        "config.yaml",
        "provenance.json",
        "log.jsonl",
    }
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    assert {
        "version",
        "track",
        "method",
        "estimator",
        "seed",
        "tasks",
        "chance",
        "matrix",
        "seen",
    } <= scores.keys()
    assert {"A_last", "A_avg", "forgetting_transfer"} <= scores["metrics"].keys()
    assert (scores["method"], scores["track"], [len(row) for row in scores["matrix"]]) == (
        "ewc",
        "efcil",
        [1, 2],
    )
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "    mcit run --order shapes:2x1 --quiet --set model.width=4" in report
    assert scores["estimator"] in report
    assert "score plain" in printed
    resolved = read_yaml(folder / "config.yaml")
    assert parse(RunConfig, resolved).method.options == {"strength": 100.0}
    assert [
        json.loads(line)["event"] for line in (folder / "log.jsonl").read_text().splitlines()
    ].count("task") == 2


def test_a_run_never_writes_over_another_unless_told_to(capsys, somewhere):
    output = somewhere / "out"
    assert main(["run", *TINY, "--output", "out"]) == 0
    capsys.readouterr()
    before = {path: path.read_bytes() for path in output.rglob("*.*")}
    message = refuse(capsys, "run", *TINY, "--output", "out")
    assert "out already holds a run; choose another --output, or pass --overwrite" in message
    assert {path: path.read_bytes() for path in output.rglob("*.*")} == before
    (output / "notes.txt").write_text("mine")
    lines = len((output / "log.jsonl").read_text().splitlines())
    assert main(["run", *TINY, "--output", "out", "--overwrite"]) == 0
    assert len((output / "log.jsonl").read_text().splitlines()) == lines
    assert (output / "notes.txt").read_text() == "mine"


def test_the_remains_of_a_broken_run_are_not_written_over_either(capsys, somewhere):
    (somewhere / "out").mkdir()
    (somewhere / "out" / "log.jsonl").write_text("{}\n")
    assert "already holds a run" in refuse(capsys, "run", *TINY, "--output", "out")


def test_an_output_that_is_a_file_is_refused(capsys, somewhere):
    (somewhere / "out").write_text("a file")
    assert "out is a file; --output names the folder" in refuse(
        capsys, "run", *TINY, "--output", "out"
    )


def test_the_same_run_twice_gets_a_folder_of_its_own(somewhere):
    (somewhere / "runs" / "shapes-2x1-finetune-seed1").mkdir(parents=True)
    assert main(["run", *TINY]) == 0
    assert (somewhere / "runs" / "shapes-2x1-finetune-seed1-2" / "scores.json").is_file()


# --- as programs


def start(*command: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_module_is_the_program(somewhere):
    done = start("-m", "mcit", "run", "--order", "nlvr", cwd=somewhere)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'nlvr2'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_script_runs_the_checkouts_own_code_from_anywhere_without_installation(somewhere):
    """Everything that an installation of mcit left behind is hidden from this process."""
    script = ROOT / "scripts" / "run_sequence.py"
    code = f"""
import os, runpy, sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__name__", "").lower()]
sys.path = [{str(script.parent)!r}] + [p for p in sys.path if not os.path.exists(os.path.join(p or ".", "mcit"))]
sys.argv = [{str(script)!r}, "--order", "shapes:5x4", "--dry-run", "--set", "model.width=4"]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    import mcit, mcit.tasks.shapes, mcit.configs
    print(mcit.__file__, mcit.tasks.shapes.__file__, mcit.configs.__file__)
"""
    done = start("-c", code, cwd=somewhere)
    assert done.returncode == 0, done.stderr
    assert "nothing was kept or written" in done.stdout
    places = done.stdout.splitlines()[-1].split()
    assert places == [
        str(ROOT / part) for part in ("mcit/__init__.py", "tasks/shapes.py", "configs/__init__.py")
    ]
    assert list(somewhere.iterdir()) == []


# --- errors that are the user's to fix, and all others


OWN_TASK = """
from dataclasses import dataclass
from mcit.data.class_incremental import ClassIncrementalTask

@dataclass(frozen=True)
class Mine(ClassIncrementalTask):
    dataset = "mine"
    class_count = 4

    def check(self):
        open("/nowhere/mine.csv")

    read_images = count_labels = augment = None
"""


@pytest.fixture
def own_task(tmp_path, monkeypatch) -> None:
    import mcit.tasks

    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "mine.py").write_text(OWN_TASK)
    monkeypatch.setattr(mcit.tasks, "__path__", [*mcit.tasks.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "mcit.tasks.mine", raising=False)


def test_a_file_that_an_own_task_does_not_find_keeps_its_traceback(own_task):
    with pytest.raises(FileNotFoundError, match=r"/nowhere/mine\.csv"):
        main(["run", "--order", "mine:2x2"])


@pytest.mark.parametrize(
    ("error", "parent"),
    [
        ("mcit.errors.ConfigError", ValueError),
        ("mcit.errors.DataError", ValueError),
        ("mcit.registry.UnknownName", LookupError),
        ("mcit.checkpoint.CheckpointError", OSError),
        ("mcit.errors.FolderError", OSError),
        ("mcit.errors.DivergedError", FloatingPointError),
    ],
)
def test_errors_that_are_the_users_have_one_base_and_keep_their_parents(error, parent):
    module, _, name = error.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert issubclass(found, McitError)
    assert issubclass(found, parent)


@pytest.mark.parametrize(
    "argv", [["--debug", "run", "--order", "nlvr"], ["run", "--order", "nlvr", "--debug"]]
)
def test_the_traceback_is_shown_where_it_is_asked_for(capsys, argv):
    assert main(argv) == 2
    message = capsys.readouterr().err
    assert message.startswith("Traceback (most recent call last):")
    assert message.splitlines()[-1].startswith("mcit: unknown task 'nlvr'; did you mean 'nlvr2'?")


def test_a_reader_that_has_seen_enough_is_no_error(somewhere):
    """The pipe is closed before a line is written, as by `mcit list | head -0`."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "mcit", "list"],
        cwd=somewhere,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_other_files_in_the_folder_of_a_run_are_said(capsys, somewhere):
    (somewhere / "out").mkdir()
    (somewhere / "out" / "thesis.tex").write_text("mine")
    assert main(["run", *TINY, "--output", "out"]) == 0
    assert "note: out holds other files too (thesis.tex)" in capsys.readouterr().out
    assert (somewhere / "out" / "thesis.tex").read_text() == "mine"


def test_what_a_run_finds_of_itself_is_not_said_to_be_foreign(capsys, somewhere):
    assert main(["run", *TINY, "--output", "out"]) == 0
    assert main(["run", *TINY, "--output", "out", "--overwrite"]) == 0
    assert "holds other files" not in capsys.readouterr().out


def test_the_flavour_is_not_told_before_an_error(capsys, tmp_path):
    assert main(["run", "--order", "cifar100:10x10", "--data-root", str(tmp_path)]) == 2
    assert "preset" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", ["default: finetune", "default: 1", "random numbers"]),
        ("sweep", ["default: 1-3", "default: runs/sweep", "default: 1,"]),
        ("reproduce", ["default: 10", "default: all"]),
    ],
)
def test_help_names_defaults(capsys, command, words):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert [word for word in words if word not in printed] == []
