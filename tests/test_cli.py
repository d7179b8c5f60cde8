"""The command line: what it prints, what it refuses, and in which words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mcit
from mcit.cli import _parser, main
from mcit.commands.run import read_config
from mcit.config import parse, read_yaml
from mcit.registry import method_names, task_names

ROOT = Path(__file__).parent.parent
TINY = ["--order", "shapes:2x1", "--quiet"]
for _change in (
    "model.width=4",
    "tasks.shapes.classes=2",
    "tasks.shapes.first_epochs=1",
    "tasks.shapes.later_epochs=1",
):
    TINY += ["--set", _change]


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch) -> Path:
    """An empty working directory; the cache is beside it. Figures take seconds to draw and have tests of their own."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setattr("mcit.reports.report.write_figures", lambda groups, folder: [])
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    return folder


def refuse(capsys, *argv: str) -> str:
    """The message on stderr of a command that must fail with code 2, and print nothing else there."""
    assert main(argv) == 2
    message = capsys.readouterr().err
    assert message.startswith("mcit: ")
    assert "Traceback" not in message
    return message


def config_of(*argv: str):
    return read_config(_parser().parse_args(["run", *argv]))


# --- what needs no run


def test_without_a_command_help_is_printed(capsys):
    assert main([]) == 0
    assert "usage: mcit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--help"], ["run", "bench", "list", "--version"]),
        (["run", "--help"], ["--order", "--method", "--config", "--data-root", "--set", "--dry-run", "--overwrite"]),
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


def test_list_names_every_task_and_method(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert ", ".join(task_names()) in printed
    assert ", ".join(method_names()) in printed


@pytest.mark.parametrize("argv", [["walk"], ["run", "--ordr", "vqa"], ["bench", "speech"], ["run", "--seed", "one"]])
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
        (["--order", "nlvr"], "unknown task 'nlvr'; did you mean 'nlvr2'? (tasks: cifar100"),
        (["--order", "shapes:5x4", "--method", "ewcdr"], "unknown method 'ewcdr'; did you mean 'ewc_dr'? (methods: "),
        (["--order", "shapes:5x4", "--set", "training.worker=2"], "unknown key 'training.worker'; did you mean"),
        (["--order", "shapes:5x4", "--set", "training.workers=two"], "'training.workers' must be a whole number"),
        (["--order", "shapes:5x4", "--set", "seed"], "override 'seed' is not of the form"),
        (["--order", "shapes:5x4", "--set", "training.log_every=0"], "'log_every' must be from 1"),
        (["--order", "shapes:5x4", "--seed", "-1"], "'seed' must be from 0"),
        (["--order", "shapes:5x4", "--method", "ewc", "--set", "method.strenth=1"], "did you mean 'strength'?"),
        (["--order", "shapes:5x4", "--set", "tasks.shapes.clases=4"], "did you mean 'classes'?"),
        (["--order", "shapes:3x3"], "split 'shapes:3x3' stands for 9 classes where shapes has 20 (for 20 classes: "),
        (["--order", "shapes:many"], "split 'shapes:many' is neither TASKSxSIZE nor START+TASKSxSIZE"),
        (["--order", "shapes"], "'shapes' needs a split, such as shapes:"),
        (["--order", "vqa:5x4"], "task 'vqa' takes no split"),
        (["--order", "vqa,vqa"], "tasks given twice in the order: vqa"),
        (["--order", "vqa,shapes:5x4"], "cannot be mixed in one order"),
        (["--order", "vqa", "--set", "model.name=resnet18"], "'resnet18', which reads no text"),
        (["--order", "shapes:5x4", "--set", "model.name=embedded"], "data sets are learned by 'resnet18'"),
        (["--order", "vqa", "--data-root", "nowhere"], "--data-root 'nowhere' is no folder"),
        (["--order", "cifar100:10x10"], "no data root given: CIFAR-100 is"),
        (["--order", "shapes:5x4", "--method", "lwf", "--set", "model.name=embedded"], "are learned by 'resnet18'"),
        (["--order", "vqa,vcr", "--set", "model.name=resnet18"], "vision-language tasks need a ViLT"),
        (["--order", "vqa,vcr", "--set", "model.width=16"], "model.width is an option of resnet18"),
        (["--order", "vqa,vcr", "--method", "lwf"], "heads of their own cannot answer"),
        (["--order", "shapes:5x4", "--method", "single"], "class-incremental tasks share one: use 'joint'"),
        (["--order", "shapes:5x4", "--method", "joint", "--set", "method.x=1"], "key 'method.x' (there are none)"),
        (["--order", "vqa", "--set", "tasks.vqa.recipe.betas=0.9,1.5"], "recipe.betas must be from 0 to below 1"),
        (["--order", "vqa", "--single", "nowhere"], "'single' names 'nowhere', which has no scores.json"),
        (["--resume", "--output", "nowhere"], "nowhere holds no run to go on with"),
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
    for words in ("nlvr2/data/train.json is missing; unpack NLVR2", "snli_ve_train.jsonl is missing; put snli_ve_"):
        assert words in message


def test_a_malformed_configuration_file_is_named(capsys, somewhere):
    (somewhere / "mine.yaml").write_text("order: [shapes:5x4\n")
    assert "mine.yaml is not valid YAML" in refuse(capsys, "run", "--config", "mine.yaml")


def test_several_problems_come_in_one_message(capsys):
    argv = ["--order", "nlvr,shapes:3x3", "--method", "ewcc", "--data-root", "nowhere"]
    message = refuse(capsys, "run", *argv)
    for words in ("'nlvr'", "shapes:3x3", "'ewcc'", "'nowhere'"):
        assert words in message
    message = refuse(capsys, "run", *argv, "--set", "seed", "--set", "sed=1", "--set", "training.workers=x")
    for words in ("'nlvr'", "'ewcc'", "override 'seed'", "'sed'; did you mean 'seed'?", "'training.workers'"):
        assert words in message


# --- what the options mean


def test_the_command_line_stands_over_the_file_and_set_over_both(somewhere):
    (somewhere / "mine.yaml").write_text(
        "order: [shapes:5x4]\nseed: 3\nmethod: {name: ewc, strength: 5}\nmodel: {width: 4}\n"
    )
    config = config_of("--config", "mine.yaml", "--seed", "4", "--method", "ewc", "--set", "model.width=2")
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
    assert main(["run", "--order", "shapes:5x4", "--method", "ewc", "--set", "model.width=8", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    for number in range(5):
        assert f"shapes[{4 * number}-{4 * number + 3}]" in printed
    for words in (
        "learning rate",
        "minutes",
        "800",
        "score plain",
        "M parameters",
        "GiB for the optimizer",
        "nothing was written",
    ):
        assert words in printed
    assert "…" not in printed
    assert list(somewhere.iterdir()) == []
    assert not (tmp_path / "cache").exists()


def test_a_run_leaves_what_it_says(capsys, somewhere):
    assert main(["run", *TINY, "--method", "ewc", "--set", "method.strength=1e2"]) == 0
    printed = capsys.readouterr().out
    (folder,) = (somewhere / "runs").iterdir()
    assert folder.name == "shapes-2x1-ewc-seed1"
    written = {path.name for path in folder.iterdir()}
    assert written >= {"scores.json", "report.md", "report.html", "config.yaml", "passport.json", "log.jsonl"}
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    assert {"version", "track", "method", "estimator", "seed", "tasks", "chance", "matrix", "seen"} <= scores.keys()
    assert {"A_last", "A_avg", "forgetting_transfer"} <= scores["metrics"].keys()
    assert (scores["method"], scores["track"], [len(row) for row in scores["matrix"]]) == ("ewc", "efcil", [1, 2])
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "    mcit run --order shapes:2x1 --quiet --set model.width=4" in report
    assert scores["estimator"] in report
    assert "score plain" in printed
    resolved = read_yaml(folder / "config.yaml")
    assert parse(type(config_of()), resolved).method.options == {"strength": 100.0}
    assert [json.loads(line)["event"] for line in (folder / "log.jsonl").read_text().splitlines()].count("task") == 2


def test_a_run_never_writes_over_another_unless_told_to(capsys, somewhere):
    output = somewhere / "out"
    assert main(["run", *TINY, "--output", "out"]) == 0
    capsys.readouterr()
    before = {path: path.read_bytes() for path in output.rglob("*.*")}
    message = refuse(capsys, "run", *TINY, "--output", "out")
    assert "out already holds a run; choose another --output, or say --overwrite" in message
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
    assert "out is a file; --output names the folder" in refuse(capsys, "run", *TINY, "--output", "out")


def test_the_same_run_twice_gets_a_folder_of_its_own(somewhere):
    (somewhere / "runs" / "shapes-2x1-finetune-seed1").mkdir(parents=True)
    assert main(["run", *TINY]) == 0
    assert (somewhere / "runs" / "shapes-2x1-finetune-seed1-2" / "scores.json").is_file()


# --- as programs


def start(*command: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
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
    assert "nothing was trained and nothing was written" in done.stdout
    places = done.stdout.splitlines()[-1].split()
    assert places == [str(ROOT / part) for part in ("mcit/__init__.py", "tasks/shapes.py", "configs/__init__.py")]
    assert list(somewhere.iterdir()) == []
