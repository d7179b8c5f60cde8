"""Generative models and tasks in words: rows and their masks, adapters, bad records, whole runs."""

from __future__ import annotations

import copy
import importlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from killing import Clock, assert_same_end, kill_until_finished, start, stop_after
from PIL import Image
from tiny_language_models import LLAMA, build
from tiny_llava import ORDER, write_text_world
from tiny_run import assert_identical, configure, learn, resolve
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from mcit.api import load_run
from mcit.checkpoint import list_checkpoints
from mcit.commands.dry_run import rehearse
from mcit.config.schema import LoraConfig, ModelConfig
from mcit.data.answers import soft_scores
from mcit.doctor.examination import examine
from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.errors import ConfigError, DataError
from mcit.export import export_learner, load_exported
from mcit.models.estimate import Footprint, build_empty
from mcit.models.generative import GenerativeBackbone, load_generative
from mcit.models.generative_inputs import Frame
from mcit.parallel.global_batch import Rows, global_batch_rows, mean_over_rows
from mcit.registry import find_task
from mcit.task import Head

TEXT = Head("text", outputs=0, kind="text", new_tokens=4)
PROMPTS = ["what color is it", "is it red", "how many are there"]
ANSWERS = ["red", "true", "two red"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_text_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def learner(world):
    return load_generative(world["model.name"], ModelConfig(name=world["model.name"])).eval()


def show(*counts: int) -> list[list[Image.Image]]:
    generator = torch.Generator().manual_seed(0)
    shown = []
    for count in counts:
        values = torch.randint(256, (count, 18, 20, 3), generator=generator, dtype=torch.uint8)
        shown.append([Image.fromarray(value.numpy()) for value in values])
    return shown


# --- rows


def test_a_row_is_the_prompt_by_the_template_the_answer_and_the_end_mark(learner):
    inputs = learner.processor
    batch = inputs.read(PROMPTS, ANSWERS, show(1, 1, 1))
    texts = inputs.tokenizer.batch_decode(batch["input_ids"])
    assert texts[2].split() == [
        *["USER:", *["<image>"] * 4, "how", "many", "are", "there", "ASSISTANT:"],
        *["two", "red", "</s>"],
    ]
    assert batch["labels"].shape == (3, 3)
    assert (batch["labels"][0] == -100).tolist() == [True, False, False]
    longest = batch["labels"].shape[1]
    counted = batch["labels"] != -100
    assert_close(batch["labels"][counted], batch["input_ids"][:, -longest:][counted])
    assert batch["attention_mask"][1, 0] == 0


def test_a_tokenizer_that_joins_prompt_and_answer_is_refused(learner, monkeypatch):
    inputs = learner.processor
    monkeypatch.setattr(inputs, "_frames", {0: Frame("", " red", "")})
    with pytest.raises(DataError, match=r"file 3, record 1: .*does not separate prompt and answer"):
        inputs.read(["it"], ["cat"], [[]], ["file 3, record 1"])


def test_rows_of_a_padded_batch_equal_single_rows(learner):
    inputs = learner.processor
    shown = show(1, 2, 0)
    batch = inputs.read(PROMPTS, ANSWERS, shown)
    assert len(batch["pixel_values"]) == 3
    together = learner(batch, TEXT)
    texts = learner.predict(batch, TEXT)
    for row in range(3):
        alone = inputs.read([PROMPTS[row]], [ANSWERS[row]], [shown[row]])
        output = learner(alone, TEXT)
        length = output.logits.shape[1]
        assert_close(together.logits[row, -length:], output.logits[0], rtol=1e-5, atol=1e-5)
        assert_close(together.features[row], output.features[0], rtol=1e-5, atol=1e-5)
        assert learner.predict(alone, TEXT) == [texts[row]]


def test_logits_are_those_of_the_whole_row_at_the_answer(learner):
    batch = learner.processor.read(PROMPTS, ANSWERS, show(1, 1, 1))
    logits = learner(batch, TEXT).logits
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    whole = learner.encoder.model(**inputs).logits
    assert_close(logits, whole[:, -logits.shape[1] - 1 : -1])


def test_answers_are_generated_greedily_whatever_the_checkpoint_asks_for(learner):
    batch = learner.processor.read(PROMPTS[:1], ANSWERS[:1], show(1))
    written = json.loads(
        (Path(learner.processor.name) / "generation_config.json").read_text(encoding="utf-8")
    )
    assert written["do_sample"]
    texts = {tuple(learner.predict(batch, TEXT)) for _ in range(3)}
    assert len(texts) == 1
    # one token after the other, each the likeliest
    ids = learner.encoder.generate(batch, 3, pad=0, end=[2])
    answer = learner.processor.tokenizer.decode(ids[0], skip_special_tokens=True)
    again = learner.processor.read(PROMPTS[:1], [answer], show(1))
    best = learner(again, TEXT).logits.argmax(dim=-1)
    assert best[0, : ids.shape[1]].tolist() == ids[0].tolist()


def test_the_progress_score_reads_the_likeliest_tokens(learner):
    batch = learner.processor.read(PROMPTS, ANSWERS, show(1, 1, 1))
    vocabulary = learner.encoder.model.config.text_config.vocab_size
    logits = torch.nn.functional.one_hot(batch["labels"].clamp(min=0), vocabulary).float()
    assert learner.read_logits(logits, batch) == ANSWERS


def test_the_loss_is_a_mean_over_the_tokens_of_all_processes(monkeypatch):
    total, count = torch.tensor([6.0, 1.0, 9.0]), torch.tensor([3, 1, 2])
    world = 2
    shares = []
    for mine in ([0, 2], [1]):

        def add_others(tensor, mine=mine):
            tensor += count.sum() - count[mine].sum()

        monkeypatch.setattr("mcit.parallel.global_batch.process_rank", lambda: (0, world))
        monkeypatch.setattr("mcit.parallel.global_batch.dist.all_reduce", add_others)
        with global_batch_rows(Rows(mine, 3)):
            share = mean_over_rows(total[mine].sum(), count[mine].sum())
        # the trainer's weight of a process
        shares.append(share * len(mine) / 3)
    assert_close(sum(shares), total.sum() / count.sum())


# --- adapters


def test_adapters_go_to_the_language_model_and_never_to_the_vision_tower(world):
    learner = load_generative(world["model.name"], ModelConfig(lora=LoraConfig(rank=2)))
    backbone = learner.encoder
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    everywhere = backbone.find_targets(LoraConfig(rank=2))
    assert len(everywhere) == 2 * len(names)
    assert all(".language_model." in name for name in everywhere)
    chosen = backbone.find_targets(LoraConfig(rank=2, targets=("q_proj",)))
    assert [name.rpartition("layers.")[2] for name in chosen] == [
        "0.self_attn.q_proj",
        "1.self_attn.q_proj",
    ]
    projector = set(backbone.find_targets(LoraConfig(rank=2, projector=True))) - set(everywhere)
    assert sorted(name.rpartition(".")[2] for name in projector) == ["linear_1", "linear_2"]
    with pytest.raises(ConfigError, match="no layer 'q_porj'; did you mean 'q_proj'"):
        backbone.find_targets(LoraConfig(rank=2, targets=("q_porj",)))
    backbone.add_adapter("default", LoraConfig(rank=2))
    trained = [name for name, p in learner.named_parameters() if p.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)
    assert (
        "on 14 layers: model.language_model.layers.*.self_attn.q_proj"
        in (backbone.describe_adapters()[0])
    )


@pytest.mark.parametrize("name", ["llava", "smolvlm", "qwen", "paligemma", "internvl"])
def test_parts_of_a_model_are_told_apart(name):
    model, _ = build(name)
    backbone = GenerativeBackbone(model)
    language = backbone.find_targets(LoraConfig(rank=2))
    names = {path.rpartition(".")[2] for path in language}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(language) == 2 * len(names)
    assert not any("vision" in path or "visual" in path for path in language)
    assert set(backbone.find_targets(LoraConfig(rank=2, projector=True))) > set(language)
    backbone.choose_trained((), adapted=False)
    frozen = [path for path, p in model.named_parameters() if not p.requires_grad]
    assert frozen
    assert all("vision" in path or "visual" in path for path in frozen)
    covered = [prefix for layer in backbone.layers() for prefix in layer.prefixes]
    assert all(path.startswith(tuple(covered)) for path, _ in backbone.named_parameters())
    assert backbone.count_blocks() == 2


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_model_of_texts_only_answers_too(world, learner, name, tmp_path):
    config = {"vocab_size": len(learner.processor.tokenizer), "pad_token_id": 0, "eos_token_id": 2}
    torch.manual_seed(4)
    if name == "llama":
        model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, **config}))
    else:
        size = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
        model = GPT2LMHeadModel(GPT2Config(**size, **config))
    model.save_pretrained(tmp_path)
    tokenizer = copy.deepcopy(learner.processor.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}USER: {{ m['content'] }} {% else %}"
        "ASSISTANT: {{ m['content'] }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path)
    alone = load_generative(str(tmp_path), ModelConfig(name=str(tmp_path))).eval()
    batch = alone.processor.read(PROMPTS, ANSWERS, [[], [], []])
    logits = alone(batch, TEXT).logits
    texts = alone.predict(batch, TEXT)
    for row in range(3):
        single = alone.processor.read([PROMPTS[row]], [ANSWERS[row]], [[]])
        found = alone(single, TEXT).logits[0]
        assert_close(logits[row, -len(found) :], found, rtol=1e-5, atol=1e-5)
        assert alone.predict(single, TEXT) == [texts[row]]
    task = open_file(world, [{"id": i, "conversations": GOOD["conversations"]} for i in range(4)])
    check_all(task, alone)
    assert task.collate([task.examples("train")[0]], alone.processor)["labels"].shape == (1, 2)
    with pytest.raises(DataError, match="reads texts only"):
        alone.processor.read(PROMPTS[:1], ANSWERS[:1], show(1))


def test_without_adapters_language_model_and_projector_train(learner):
    trained = {name.split(".")[3] for name, p in learner.named_parameters() if p.requires_grad}
    assert "vision_tower" not in trained
    assert {"language_model", "multi_modal_projector"} <= trained


def test_a_bfloat16_base_has_float32_adapters(world):
    config = ModelConfig(name=world["model.name"], dtype="bfloat16", lora=LoraConfig(rank=2))
    learner = load_generative(config.name, config)
    learner.encoder.add_adapter("default", config.lora)
    for name, parameter in learner.named_parameters():
        expected = torch.float32 if ".lora_" in name else torch.bfloat16
        assert parameter.dtype == expected, name
    batch = learner.processor.read(PROMPTS, ANSWERS, show(1, 1, 1))
    logits = learner(batch, TEXT).logits
    logits.float().logsumexp(dim=-1).sum().backward()
    assert all(p.grad is not None for p in learner.parameters() if p.requires_grad)


# --- records


def tell(*turns: tuple[str, str], **more) -> dict:
    said = [{"from": role, "value": text} for role, text in turns]
    return {"id": "1", "image": "images/red.png", "conversations": said, **more}


GOOD = tell(("human", "what is it"), ("gpt", "red"), ("human", "and"), ("gpt", "blue"))
MARKED = tell(("human", "<image>\nwhat is it"), ("gpt", "red"))
BAD = {
    "empty conversation": tell(),
    "found 'narrator'": tell(("narrator", "what"), ("gpt", "red")),
    "the first turn must be a question": tell(("gpt", "red"), ("human", "what")),
    "has no answer": tell(("human", "what")),
    "has an empty answer": tell(("human", "what"), ("gpt", " ")),
    "has no answer (none of": {"question_id": 1, "image": "images/red.png", "text": "what"},
    "one mark for each image": tell(("human", "<image><image> what"), ("gpt", "red")),
    "inside the image folder": tell(("human", "what"), ("gpt", "red"), image="../secret.png"),
    "lacks images": tell(("human", "what"), ("gpt", "red"), image="images/none.png"),
    "the model takes at most 64": tell(("human", "what"), ("gpt", "red " * 70)),
}


def open_file(world, records, **options):
    root = Path(world["data_root"])
    path = root / "records.json"
    path.write_text(json.dumps(records))
    cls = find_task("instruction")
    (task,) = cls.sequence("records.json", {"root": str(root), "holdout": 2, **options}, seed=1)
    return task


def check_all(task, learner):
    task.check()
    task.fit_to(learner.processor)


@pytest.mark.parametrize("problem", BAD)
def test_a_bad_record_is_named_with_its_file_or_left_out(world, learner, problem):
    records = [MARKED, GOOD, BAD[problem], GOOD, MARKED]
    task = open_file(world, records)
    with pytest.raises(DataError) as caught:
        check_all(task, learner)
    assert problem in str(caught.value)
    assert "records.json, record 3" in str(caught.value)
    lenient = open_file(world, records, on_bad_record="skip")
    check_all(lenient, learner)
    assert len(lenient.examples("train")) == 2
    assert len(lenient.examples("eval")) == 2
    assert "1 of 5 records are left out" in lenient.data_notes(learner.processor)[0]


def test_records_of_either_form_are_read_and_texts_need_no_image(world, learner):
    forms = [
        GOOD,
        {"question_id": 5, "image": ["images/red.png", "images/blue.png"], "text": "what is it"},
        {"id": 3, "conversations": GOOD["conversations"][2:]},
        {"question_id": 9, "image": "images/red.png", "text": "where", "answer_bbox": [0.1, 0.2]},
    ]
    forms[1]["answers"] = ["red", "blue"]
    task = open_file(world, [record for record in forms for _ in range(2)])
    task.check()
    examples = [task.examples("train")[place] for place in range(4)]
    assert [len(example["images"]) for example in examples] == [1, 2, 0, 1]
    assert [example["prompt"] for example in examples] == [
        "what is it",
        "what is it",
        "and",
        "where",
    ]
    answers = [example["answers"] for example in examples]
    assert answers == [["red"], ["red", "blue"], ["blue"], ["[0.1, 0.2]"]]
    batch = task.collate(examples, learner.processor)
    texts = learner.predict(batch, task.head)
    assert task.metric_inputs(texts, batch)["references"] == answers


def test_the_doctor_looks_at_files_of_instructions_and_says_how_to_run_them(world):
    findings = examine(Path(world["data_root"]), ORDER.split(","))
    assert [(finding.status, finding.order) for finding in findings] == [
        ("ready", item) for item in ORDER.split(",")
    ]


# --- the tasks of the first track, in words


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    write_benchmark(folder, Sizes(train=6, evaluation=4), seed=3)
    return folder


ANSWERED_BY = {
    "vqa-text": r".+\?\nAnswer the question using a single word or phrase\.",
    "nlvr2-text": r".+\nAnswer with true or false\.",
    "snli-ve-text": r".+\nAnswer with entailment, neutral or contradiction\.",
    "vcr-text": r".+\nA\. .+\nB\. .+\nC\. .+\nD\. .+\nAnswer with the option's letter .*",
}


@pytest.mark.parametrize("name", ANSWERED_BY)
def test_a_task_of_the_first_track_is_asked_in_words(benchmark, name):
    (task,) = find_task(name).sequence(None, {"root": str(benchmark)}, seed=1)
    task.check()
    examples = task.examples("train")
    original = task.original.examples("train")
    for place in range(len(examples)):
        example = examples[place]
        assert re.fullmatch(ANSWERED_BY[name], example["prompt"])
        assert len(example["images"]) == task.original.shown_images
        if name != "vqa-text":
            assert example["answers"] == [task.original.output_names()[original[place]["label"]]]
    answers = [[each] for each in (examples[place]["answers"][0] for place in range(6))]
    metric = task.metric()
    metric.add_batch(predictions=[each[0] for each in answers], references=answers)
    found = metric.compute()
    assert found["score"] == found["obedience"] == 100


def test_ten_votes_have_the_soft_scores_that_they_were_made_of():
    list_votes = importlib.import_module("mcit.tasks.vqa_text").list_votes
    # not the letter a, which is an article
    for votes in ("zzzzzzzzzz", "zzzzyyyxxw", "zzzyyyxxxw", "zyxwvutsrq", "zzzzzzzzyy"):
        scores = soft_scores(votes)
        made = list_votes(scores)
        assert len(made) == 10
        assert made[0] == "z"
        assert soft_scores(made) == pytest.approx(scores)


# --- whole runs


def test_strength_0_is_finetuning_and_a_base_is_never_stored(world, tmp_path):
    wide = {**world, "model.lora.rank": 64}
    free = learn(configure(ORDER, "finetune", wide), tmp_path / "free")
    held = learn(configure(ORDER, "ewc_lo", wide, method__strength=0.0), tmp_path / "held")
    assert_identical(held.state, free.state)
    assert held.rows == free.rows
    adapter = sum(p.nbytes for n, p in free.learner.named_parameters() if ".lora_" in n)
    for folder in ("free", "held"):
        for saved in list_checkpoints(tmp_path / folder / "checkpoints"):
            size = sum(path.stat().st_size for path in Path(saved).rglob("*") if path.is_file())
            assert size <= 4 * adapter
    # with the optimizer, which a checkpoint inside a task has
    stop_after(1, configure(ORDER, "finetune", wide), tmp_path / "inside")
    (inside,) = list_checkpoints(tmp_path / "inside" / "checkpoints")
    assert (inside / "optimizer.safetensors").is_file()
    assert sum(path.stat().st_size for path in inside.iterdir()) <= 4 * adapter
    scores = json.loads((tmp_path / "free" / "scores.json").read_text())
    assert scores["track"] == "instructions"
    assert len(scores["zero_shot"]["score"]) == 2


def test_a_killed_run_ends_as_if_it_had_not_been(world, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    config = configure(ORDER, "ewc_lo", world, method__strength=10.0, checkpoint__every_steps=2)
    start(config, tmp_path / "whole")
    total = clock.ticks
    assert kill_until_finished(clock, config, tmp_path / "killed", total, 3, 0)
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("mas", {"method__strength": 1.0}),
        ("si", {"method__strength": 1.0}),
        ("l2_anchor", {"method__strength": 0.1}),
        ("replay", {"method__fraction": 0.5, "method__frequency": 2}),
        ("joint", {}),
        ("single", {}),
        ("adapters", {"method__rank": 2}),
    ],
)
def test_methods_learn_tasks_in_words(world, tmp_path, method, options):
    short = {"tasks__instruction__recipe__epochs": 1}
    done = learn(configure(ORDER, method, world, **short, **options), tmp_path)
    assert len(done.rows) == 2
    # B begins at zero
    moved = [name for name, value in done.state.items() if ".lora_B." in name and value.any()]
    assert len(moved) == 14 * (2 if method == "adapters" else 1)


def test_a_run_in_words_is_loaded_and_exported(world, tmp_path):
    learn(configure(ORDER, "finetune", world), tmp_path / "run")
    trained = load_run(tmp_path / "run")
    image = show(1)[0][0]
    said = trained.predict("a", images=[image], texts=["what color is it"])
    assert all(isinstance(text, str) for text in said)
    export_learner(trained.learner, tmp_path / "out", "card", {})
    again = load_exported(tmp_path / "out")
    task = trained.find_task("a")
    batch = task.read_inputs([image], ["what color is it"], again.processor)
    assert again.predict(batch, task.head) == said


def test_words_and_heads_are_not_mixed(world):
    with pytest.raises(ConfigError, match="tasks of different tracks"):
        resolve(configure("instruction:a.json,nlvr2", "finetune", world))


def test_only_a_generative_model_answers_in_words(world):
    config = configure(ORDER, "finetune", world)
    narrow = replace(config, model=replace(config.model, name="resnet18", lora=LoraConfig()))
    with pytest.raises(ConfigError, match="use a generative model for"):
        resolve(narrow)


def test_a_dry_run_needs_no_weights(world, tmp_path, capsys):
    empty = tmp_path / "empty"
    shutil.copytree(world["model.name"], empty)
    (empty / "model.safetensors").unlink()
    config = configure(ORDER, "ewc_lo", {**world, "model.name": str(empty)}, method__strength=1.0)
    rehearse(resolve(config), main_process=True)
    printed = capsys.readouterr().out
    whole = load_generative(world["model.name"], config.model)
    whole.encoder.add_adapter("default", config.model.lora)
    adapter = sum(p.numel() for p in whole.parameters() if p.requires_grad)
    assert f"LoRA adapter 'default' ({adapter} weights) on 14 layers" in printed
    assert "nothing was loaded, downloaded or written" in printed
    footprint = Footprint.of(build_empty(replace(config.model, name=str(empty))), config.model)
    assert footprint.trained == adapter
    assert footprint.weight_bytes == sum(p.nbytes for p in whole.parameters())
    assert footprint.training_bytes("adamw") == 12 * adapter
    # 2 rows of 10 tokens, 16 wide, two layers, and logits at 3 places
    numbers = 2 * 10 * 16 * 4
    logits = 12 * 2 * 3 * footprint.vocabulary
    assert footprint.activation_bytes(2, 10, 3) == 17 * 2 * numbers + logits


def test_weights_that_processes_divide_are_counted_per_process():
    # 900 frozen weights in 16 bits, 100 that train
    sizes = {"weights": 1000, "trained": 100, "weight_bytes": 2 * 900 + 4 * 100}
    shape = {"layers": 1, "width": 1, "vocabulary": 1, "precision": 2, "checkpointing": False}
    footprint = Footprint(**sizes, **shape)
    names = ("weights", "gradients and optimizer", "the method")
    for options, expected in (
        ({}, (2200, 1200, 800)),
        ({"parts": 4}, (450 + 100, 300, 200)),
        ({"parts": 4, "adapted": True}, (450 + 400, 1200, 800)),
    ):
        found = footprint.held_bytes("adamw", 8, **options)
        assert found == dict(zip(names, expected, strict=True))
