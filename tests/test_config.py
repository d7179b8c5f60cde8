"""Configuration: what is accepted, what is refused and in which words, and that nothing is lost on
the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcit.config.files import find_config, read_yaml, to_yaml
from mcit.config.parse import Selection, layer, override, parse, to_dict
from mcit.config.schema import LoraConfig, ModelConfig, RunConfig, TrainingConfig
from mcit.errors import ConfigError
from mcit.registry import METHOD, TASK, find_task, list_names
from mcit.spelling import suggest
from mcit.task import Recipe

FOLDER = Path(__file__).parent.parent / "configs"
# of other kinds: for `accelerate launch`, and options of tasks for --recipe
OTHERS = ("accelerate", "recipes")
CONFIGS = sorted(
    path
    for path in FOLDER.rglob("*.yaml")
    # plans of studies are read by tests/test_studies.py
    if path.parent.name not in OTHERS and not path.name.startswith("study-")
)


@dataclass(frozen=True)
class Inner:
    size: int = 3
    rate: float = 0.5


@dataclass(frozen=True)
class Everything:
    choice: Literal["a", "b", 3] = "a"
    budget: int | float | None = None
    pair: tuple[float, float] = (0.9, 0.98)
    many: tuple[int, ...] = ()
    names: list[str] = field(default_factory=list)
    folder: Path | None = None
    free: Any = None
    flag: bool = False
    text: str = "x"
    table: Mapping[str, int] = field(default_factory=dict)
    inner: Inner = Inner(size=7, rate=0.25)
    maybe: Inner | None = Inner(size=9, rate=0.125)
    made: Inner = field(default_factory=lambda: Inner(size=11, rate=0.0625))


def problems_of(cls: type, data: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(cls, data)
    return caught.value.problems


# --- values


def test_a_method_given_by_name_takes_dotted_options():
    data = override({"method": "ewc"}, ["method.strength=1e4", "method.estimator.labels=sampled"])
    assert parse(RunConfig, data).method == Selection(
        "ewc", {"strength": 1e4, "estimator": {"labels": "sampled"}}
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e4", 1e4),
        ("-2.5E-3", -2.5e-3),
        (".5", 0.5),
        ("3", 3),
        ("-1", -1),
        ("true", True),
        ("false", False),
        ("null", None),
        ("", None),
        ("[1, 2e1, x]", [1, 20.0, "x"]),
        ("{a: 1}", {"a": 1}),
        ("a,b", "a,b"),
        ("a=b", "a=b"),
        ("shapes:5x4", "shapes:5x4"),
        ("'1e4'", "1e4"),
        ("[1, 2", "[1, 2"),
        # what YAML 1.1 would make a truth value, an octal number, base 60 and a date of
        ("no", "no"),
        ("007", "007"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_an_override_is_read_as_the_value_it_looks_like(text, value):
    found = override({}, [f"a.b={text}"])["a"]["b"]
    assert found == value
    assert type(found) is type(value)


def test_overrides_leave_what_was_given_untouched_and_the_last_one_wins():
    data = {"training": {"workers": 1}, "method": "ewc"}
    result = override(data, ["training.workers=2", "training.workers=3", "method.strength=1"])
    assert data == {"training": {"workers": 1}, "method": "ewc"}
    assert result == {"training": {"workers": 3}, "method": {"name": "ewc", "strength": 1}}


def test_malformed_overrides_are_all_named():
    with pytest.raises(ConfigError) as caught:
        override({"order": ["vqa"]}, ["seed", "=3", "a..b=1", "order.first=vqa", "seed=2"])
    assert len(caught.value.problems) == 4
    assert "order is not a section" in caught.value.problems[3]


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("choice", "b", "b"),
        ("choice", 3, 3),
        ("budget", 5, 5),
        ("budget", 1.0, 1.0),
        ("budget", 0.5, 0.5),
        ("budget", None, None),
        ("pair", "0.9, 1e-3", (0.9, 1e-3)),
        ("pair", [1, 2], (1.0, 2.0)),
        ("many", "60,120", (60, 120)),
        ("many", [], ()),
        ("names", "a, b", ["a", "b"]),
        ("names", [2014], ["2014"]),
        ("folder", "some/where", Path("some/where")),
        ("folder", None, None),
        ("free", {"any": ["thing"]}, {"any": ["thing"]}),
        ("table", {"a": 1.0}, {"a": 1}),
        ("text", 2014, "2014"),
    ],
)
def test_values_take_the_type_of_their_field(name, given, value):
    found = getattr(parse(Everything, {name: given}), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("choice", "c", "choices: a, b, 3"),
        ("choice", "3", "'choice' is '3' (text)"),
        ("choice", True, "choices"),
        ("budget", "many", "'budget' must be a whole number or a number, found 'many' (text)"),
        ("budget", True, "'budget' must be a whole number or a number"),
        ("pair", [1], "'pair' must have 2 values"),
        ("pair", 1, "'pair' must be a list"),
        ("many", [1.5], "'many[0]' must be a whole number, found 1.5 (float)"),
        ("many", {"a": 1}, "'many' must be a list"),
        ("folder", 3, "'folder' must be a path"),
        ("flag", "yes", "'flag' must be true or false, found 'yes' (text)"),
        ("flag", 1, "'flag' must be true or false"),
        ("text", None, "'text' must be text, found nothing"),
        ("text", 1.10, "'text' must be text"),  # as text it would have lost a digit
        ("text", True, "'text' must be text"),
        ("table", [1], "'table' must be a section"),
        ("table", {"a": "b"}, "'table.a' must be a whole number"),
        ("inner", 3, "inner: expected a section of size, rate"),
        ("inner", {"size": 1.5}, "'inner.size' must be a whole number"),
        ("inner", {"size": True}, "'inner.size' must be a whole number"),
        ("inner", {"size": float("nan")}, "'inner.size' must be a whole number"),
        (
            "inner",
            {"rate": float("nan")},
            "'inner.rate' must be a finite number of single precision (up to 3.4e38)",
        ),
        ("inner", {"rate": float("-inf")}, "'inner.rate' must be a finite number"),
        ("inner", {"rate": 1e39}, "'inner.rate' must be a finite number"),
        ("inner", {"rate": 10**400}, "'inner.rate' must be a finite number"),
        ("inner", {"rate": -(10**400)}, "'inner.rate' must be a finite number"),
    ],
)
def test_a_wrong_type_is_refused_by_name(name, given, words):
    (problem,) = problems_of(Everything, {name: given})
    assert words in problem


def test_a_partial_section_keeps_the_other_values_of_its_default():
    assert parse(Everything, {"inner": {"size": 1}}).inner == Inner(size=1, rate=0.25)
    assert parse(Everything, {"maybe": {"size": 1}}).maybe == Inner(size=1, rate=0.125)
    assert parse(Everything, {"made": {"size": 1}}).made == Inner(size=1, rate=0.0625)
    assert parse(Everything, {"maybe": None}).maybe is None


def test_a_partial_recipe_keeps_the_rest_of_the_tasks_own():
    cls = find_task("nlvr2")
    own = cls().recipe
    (task,) = cls.sequence(None, {"recipe": {"epochs": 1, "betas": "0.5,0.6"}}, seed=1)
    assert task.recipe == dataclasses.replace(own, epochs=1, betas=(0.5, 0.6))
    assert task.recipe.learning_rate != Recipe(1, 1, 1.0).learning_rate


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"training": {"log_every": 0}}, "training: 'log_every' must be at least 1, found 0"),
        ({"training": {"accumulate": 0}}, "'accumulate' must be at least 1"),
        ({"training": {"workers": -1}}, "'workers' must be at least 0"),
        ({"training": {"eval_batch_size": 0}}, "'eval_batch_size' must be at least 1"),
        ({"training": {"clip_norm": 0}}, "'clip_norm' must be above 0"),
        ({"model": {"width": 0}}, "model: 'width' must be at least 1"),
        ({"model": {"lora": {"rank": -1}}}, "model.lora: 'rank' must be at least 0"),
        ({"seed": -1}, "'seed' must be from 0"),
    ],
)
def test_values_that_cannot_work_are_refused_before_anything_runs(data, words):
    (problem,) = problems_of(RunConfig, data)
    assert words in problem


# --- problems


def test_an_unknown_key_is_refused_with_a_suggestion_and_the_known_ones():
    (problem,) = problems_of(RunConfig, {"training": {"mixed_precison": "bf16"}})
    assert problem.startswith(
        "unknown key 'training.mixed_precison'; did you mean 'mixed_precision'? (keys: mixed_"
    )
    (problem,) = problems_of(RunConfig, {"zzz": 1})
    assert "did you mean" not in problem
    assert "order, method, classifier, transport, model" in problem


def test_all_problems_come_in_one_message():
    data = {
        "sed": 1,
        "order": 5,
        "model": {"lora": {"rnk": 1, "alpha": "high"}, "width": "wide"},
        "training": {"mixed_precision": "fp8", "clip_norm": [1]},
        "method": {"strength": 1},
        "tasks": {"vqa": 3},
    }
    with pytest.raises(ConfigError) as caught:
        parse(RunConfig, data)
    assert len(caught.value.problems) == 9
    message = str(caught.value)
    for word in (
        "'sed'",
        "'order'",
        "rnk",
        "alpha",
        "width",
        "fp8",
        "clip_norm",
        "'method'",
        "tasks.vqa",
    ):
        assert word in message
    assert message.count("\n  - ") == 9


def test_what_a_section_says_of_itself_is_told_with_its_place():
    from mcit.methods.ewc import Ewc

    with pytest.raises(ConfigError, match=r"method\.estimator: estimator\.cap must be above 0"):
        parse(Ewc, {"strength": 1, "estimator": {"cap": -1}}, where="method")


@pytest.mark.parametrize("value", [None, {}, {"strength": 1}, {"name": 3}, ["ewc"]])
def test_a_method_without_a_name_is_refused(value):
    (problem,) = problems_of(RunConfig, {"method": value})
    assert "must be a name, or a section with a 'name'" in problem


@dataclass(frozen=True)
class Holding:
    """A dataclass with a class variable whose type is left out, which Python 3.10 cannot evaluate."""

    columns: ClassVar = {"image": "image"}
    count: int = 3


def test_a_class_variable_without_a_type_is_no_option():
    assert parse(Holding, {"count": 4}) == Holding(4)
    with pytest.raises(ConfigError, match="unknown key 'columns'"):
        parse(Holding, {"columns": {}})


def test_a_missing_value_without_default_is_named():
    assert problems_of(Recipe, {"epochs": 1}) == [
        "'batch_size' is missing",
        "'learning_rate' is missing",
    ]


def test_suggestions_see_near_words_whatever_their_case():
    assert suggest("nlvr", ["nlvr2", "vqa"]) == "; did you mean 'nlvr2'?"
    assert suggest("VQA", ["nlvr2", "vqa"]) == "; did you mean 'vqa'?"
    assert suggest("cifar10000", ["cifar100"]) == "; did you mean 'cifar100'?"
    assert suggest("audio", ["nlvr2", "vqa"]) == ""
    assert suggest("", ["nlvr2"]) == ""


# --- frozen, and back again


@pytest.mark.parametrize(
    "config", [RunConfig(), ModelConfig(), TrainingConfig(), LoraConfig(), Selection("ewc")]
)
def test_a_configuration_is_frozen(config):
    for spec in dataclasses.fields(config):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, spec.name, None)


def test_parsing_shares_nothing_with_what_it_read():
    data = {"method": {"name": "ewc", "strength": 1}, "tasks": {"vqa": {"minimum": 2}}}
    config = parse(RunConfig, data)
    data["method"]["strength"] = data["tasks"]["vqa"]["minimum"] = 99
    assert config.method.options == {"strength": 1}
    assert config.tasks == {"vqa": {"minimum": 2}}


# words of what makes YAML's plain values ambiguous
words = st.sampled_from(
    ["no", "null", "1e4", "007", "1:30", "2024-01-01", "~", "", "a: b", "vqa", "1_0", "=", "<<"]
)
words |= st.text("ae1 .,:-+#'\"\\\n[]{}é", max_size=5)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)
)
options = st.dictionaries(words.filter(lambda word: word != "name"), values, max_size=3)
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
lora = st.builds(
    LoraConfig,
    rank=st.integers(0, 64),
    alpha=numbers,
    dropout=st.floats(0, 0.9),
    targets=st.lists(words.filter(lambda word: "," not in word), max_size=3).map(tuple),
)
runs = st.builds(
    RunConfig,
    order=st.lists(words, max_size=3).map(tuple),
    method=st.builds(Selection, words, options),
    model=st.builds(
        ModelConfig,
        name=words,
        lora=lora,
        gradient_checkpointing=st.booleans(),
        width=st.integers(1, 99),
    ),
    training=st.builds(
        TrainingConfig,
        mixed_precision=st.sampled_from(["no", "bf16", "fp16"]),
        accumulate=st.integers(1, 9),
        clip_norm=st.none() | st.floats(1e-9, 1e9),
    ),
    tasks=st.dictionaries(words, options, max_size=2),
    methods=st.dictionaries(words, options, max_size=2),
    data_root=st.none() | words.filter(bool),
    seed=st.integers(0, 2**32 - 1),
    output=st.none() | words.filter(bool),
)


@given(runs)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_run_survives_being_written_and_read(tmp_path, config):
    assert parse(RunConfig, to_dict(config)) == config
    path = write(tmp_path, to_yaml(config))
    assert parse(RunConfig, read_yaml(path)) == config
    assert yaml.safe_load(path.read_text(encoding="utf-8")) == to_dict(
        config
    )  # any other reader sees the same


@given(
    st.builds(
        Everything,
        choice=st.sampled_from(["a", "b", 3]),
        budget=st.none() | st.integers() | numbers,
        pair=st.tuples(numbers, numbers),
        many=st.lists(st.integers(), max_size=3).map(tuple),
        names=st.lists(words, max_size=2),
        folder=st.none() | st.just(Path("a/b")),
        free=values,
        text=words,
        table=st.dictionaries(words, st.integers(), max_size=2),
        maybe=st.none() | st.builds(Inner, st.integers(), numbers),
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_kind_of_field_survives_a_round_trip(config):
    data = to_dict(config)
    assert parse(Everything, data) == config
    assert data["folder"] is None or type(data["folder"]) is str  # plain values only


@pytest.mark.parametrize("name", [n for n in list_names(TASK) if n != "shapes"])
def test_the_options_of_a_task_survive_a_round_trip(name):
    task = find_task(name)(root=Path("some/where"))
    data = {key: value for key, value in to_dict(task).items() if key != "part"}
    assert parse(type(task), data) == task
    assert yaml.safe_load(to_yaml(data)) == data


# --- layers


def test_layers_are_laid_section_by_section():
    defaults = {"tasks": {"vqa": {"epochs": 4, "rate": 1}}, "seed": 1, "model": {"width": 3}}
    data = {"tasks": {"vqa": {"epochs": 9}, "vcr": {"epochs": 2}}, "model": None}
    assert layer(defaults, data) == {
        "tasks": {"vqa": {"epochs": 9, "rate": 1}, "vcr": {"epochs": 2}},
        "seed": 1,
        "model": None,
    }
    assert defaults["tasks"] == {"vqa": {"epochs": 4, "rate": 1}}
    assert data["tasks"] == {"vqa": {"epochs": 9}, "vcr": {"epochs": 2}}


# --- files


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "run.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("order: [vqa", "is not valid YAML"),
        ("a: 1\n b: 2", "is not valid YAML"),
        ("- vqa\n- vcr", "holds a list where names with values are expected"),
        ("vqa", "holds a text"),
        ("method: ewc\nseed: 1\nmethod: mas", "'method' is given twice"),
        ("tasks:\n  vqa: {minimum: 1, minimum: 2}", "'minimum' is given twice"),
        ("a: !!python/object/apply:os.getcwd []", "is not valid YAML"),
        (b"\xff\xfe\x00binary", "is not valid YAML"),
    ],
)
def test_a_malformed_file_is_refused_by_name(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    (problem,) = caught.value.problems
    assert str(path) in problem
    assert words in problem
    assert "\n" not in problem
    assert "<unicode string>" not in problem


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing yet\n", "---\n"])
def test_an_empty_file_is_refused(tmp_path, text):
    """Most likely it is not the file that was meant."""
    with pytest.raises(
        ConfigError, match=r"run\.yaml is empty, or holds nothing but comments; write what differs"
    ):
        read_yaml(write(tmp_path, text))


def test_a_missing_file_is_named_with_its_neighbour(tmp_path):
    write(tmp_path, "seed: 1")
    with pytest.raises(
        ConfigError, match=r"no configuration file '.*runs\.yaml'; did you mean 'run\.yaml'\?"
    ):
        read_yaml(tmp_path / "runs.yaml")
    with pytest.raises(ConfigError, match="no configuration file"):
        read_yaml(tmp_path / "nowhere" / "run.yaml")


def test_a_folder_is_no_configuration(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read as a configuration file"):
        read_yaml(tmp_path)


def test_anchors_and_merges_of_yaml_work(tmp_path):
    text = "tasks:\n  vqa: &short {recipe: {epochs: 1}}\n  vcr: {<<: *short, drawn: true}\n"
    tasks = parse(RunConfig, read_yaml(write(tmp_path, text))).tasks
    assert tasks["vcr"] == {"recipe": {"epochs": 1}, "drawn": True}


# --- the experiments that ship


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_configuration_parses_and_names_what_exists(path):
    config = parse(RunConfig, read_yaml(path))
    names = {item.partition(":")[0] for item in config.order}
    assert names | set(config.tasks) <= set(list_names(TASK))
    assert {config.method.name, *config.methods} <= set(list_names(METHOD))
    for item in config.order:
        name, _, split = item.partition(":")
        tasks = find_task(name).sequence(split or None, config.tasks.get(name, {}), config.seed)
        assert len(tasks) > (1 if split else 0)
    for name in set(config.tasks) - names:
        find_task(name).sequence(None, config.tasks[name], config.seed)


def test_a_shipped_configuration_is_found_by_name_and_by_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "climb",
        "configs/climb.yaml",
        "efcil/cifar100-mini",
        "configs/efcil/cifar100-mini.yaml",
    ):
        assert find_config(name).stem == Path(name).stem
        assert find_config(name).is_file()
    with pytest.raises(
        ConfigError,
        match=r"no configuration file 'climbb'; did you mean 'climb'\? \(names in configs/",
    ):
        find_config("climbb")


def test_a_users_own_file_comes_before_one_that_ships(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "climb.yaml").write_text("seed: 5")
    assert find_config("climb.yaml") == Path("climb.yaml")
    assert len(CONFIGS) > 20
