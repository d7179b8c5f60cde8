"""Importance of language-model heads equals a slow loop over single answers, in every model."""

from __future__ import annotations

import copy
from typing import Any

import datasets
import peft
import pytest
import torch
import transformers
from accelerate.state import AcceleratorState, GradientState
from tiny_language_models import LENGTHS, MODELS, VOCABULARY, Batch, add_lora, build, make_rows
from torch import Tensor, nn
from torch.testing import assert_close

from mcit import ConsolidationCallback, ConsolidationManager, Estimator, measure_importance
from mcit.answer_scores import read_answers, score_answers
from mcit.estimator import score_examples

SCORES = [
    {"score": "plain"},
    {"score": "plain", "length": "mean"},
    {"score": "reversed"},
    {"score": "reversed", "candidates": 5},
    {"score": "log_odds"},
    {"score": "log_odds", "odds": "token"},
    {"score": "output_norm"},
    {"score": "output_norm", "centered": False},
]


def score_one(z: Tensor, y: Tensor, options: dict[str, Any]) -> Tensor:
    """The score of one answer, from logits [tokens, vocabulary] in float64, written out."""
    tokens = []
    for logits, label in zip(z, y.tolist(), strict=True):
        p = logits.softmax(0)[label]
        if options["score"] == "plain":
            tokens.append(-p.log())
        elif options["score"] == "log_odds":
            tokens.append(p.log() - (1 - p).log())
        elif options["score"] == "output_norm":
            shifted = logits if options.get("centered") is False else logits - logits.mean()
            tokens.append((shifted * shifted).sum().sqrt())
        else:
            kept = logits.argsort(descending=True)[
                : options.get("candidates") or len(logits)
            ].tolist()
            if label not in kept:
                kept[-1] = label
            reversed_ = (-logits[kept]).softmax(0)[kept.index(label)]
            tokens.append(-reversed_.log())
    if options["score"] == "log_odds" and options.get("odds") != "token":
        log_p = -sum(torch.nn.functional.softplus(-odds) for odds in tokens)
        return log_p - torch.log(-torch.expm1(log_p))
    total = sum(tokens)
    return total / len(tokens) if options.get("length") == "mean" else total


def pick(batch: Batch, row: int) -> Batch:
    """One example, with the images that are its own."""
    one = {}
    for key, value in batch.items():
        rows = len(value) // len(LENGTHS)
        value = value.double() if value.is_floating_point() else value
        one[key] = value[row * rows : (row + 1) * rows]
    return one


def align(model: nn.Module, one: Batch) -> tuple[Tensor, Tensor]:
    """Logits and labels of the counted tokens of one example, from the model's full output."""
    base = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    if base.config.is_encoder_decoder:
        logits = model(**one).logits[0]
        labels = one["labels"][0]
    else:
        logits = model(**{key: value for key, value in one.items() if key != "labels"}).logits[
            0, :-1
        ]
        labels = one["labels"][0, 1:]
    counted = labels != -100
    return logits[counted], labels[counted]


def loop(model: nn.Module, batch: Batch, options: dict[str, Any]) -> dict[str, Tensor]:
    model = copy.deepcopy(model).double()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for row in range(len(LENGTHS)):
        score = score_one(*align(model, pick(batch, row)), options)
        found = torch.autograd.grad(score, list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                sums[name] += (
                    gradient.abs() if options["score"] == "output_norm" else gradient.square()
                )
    return {name: total / len(LENGTHS) for name, total in sums.items()}


def assert_equal(
    found: dict[str, Tensor],
    expected: dict[str, Tensor],
    tolerance: float = 1e-5,
    floor: float = 1e-2,
) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(value.max()) for value in expected.values())
    assert largest > 0
    for name, value in expected.items():
        worst = float((found[name].double() - value).abs().max())
        # gradients that are zero but for rounding are compared with the others
        scale = max(float(value.max()), floor * largest)
        assert worst <= tolerance * scale, f"{name}: off by {worst:.3g} of {scale:.3g}"


@pytest.mark.parametrize(
    "options", SCORES, ids=lambda options: "-".join(map(str, options.values()))
)
@pytest.mark.parametrize("name", MODELS)
def test_every_score_equals_one_answer_at_a_time(name, options):
    model, batch = build(name)
    assert_equal(measure_importance(model, [batch], **options).values, loop(model, batch, options))


@pytest.mark.parametrize("name", ["llama", "llava", "smolvlm", "qwen", "paligemma", "internvl"])
def test_lora_is_exact_and_served_by_rules_alone(name):
    model, batch = build(name)
    model = add_lora(model)
    found = measure_importance(model, [batch], score="log_odds")
    assert_equal(found.values, loop(model, batch, {"score": "log_odds"}))
    assert set(found.paths.values()) == {"rule"}
    assert all("lora_" in key for key in found.values)


@pytest.mark.parametrize("autocast", [False, True])
def test_lora_in_32_bits_on_a_base_in_16_stays_on_the_rules(autocast):
    model, batch = build("llava")
    if not autocast:
        model = model.bfloat16()
        batch["pixel_values"] = batch["pixel_values"].bfloat16()
    model = add_lora(model)

    def forward(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return read_answers(model, batch)

    found = measure_importance(model, [batch], score="plain", forward=forward)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in trained} == {torch.float32}
    assert set(found.paths.values()) == {"rule"}
    truth = loop(model, batch, {"score": "plain"})
    rounding = distance(loop_as_it_is(model, batch, forward), truth)
    # how far 16 bits are off depends on the processor
    assert 0 < rounding < 0.1
    assert distance(found.values, truth) <= 2 * rounding


def loop_as_it_is(model: nn.Module, batch: Batch, forward: Any) -> dict[str, Tensor]:
    """The plain score's importance by one backward pass per answer, in the model's precision."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for row in range(len(LENGTHS)):
        one = {}
        for key, value in pick(batch, row).items():
            one[key] = value.to(batch[key].dtype)
        logits, labels = forward(model, one)
        score = nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), reduction="sum"
        )
        gradients = torch.autograd.grad(score, list(parameters.values()))
        for name, gradient in zip(parameters, gradients, strict=True):
            sums[name] += gradient.square()
    return {name: total / len(LENGTHS) for name, total in sums.items()}


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The norm of the difference over that of what is expected, over all tensors."""
    names = list(expected)
    wanted = torch.cat([expected[name].double().flatten() for name in names])
    given = torch.cat([found[name].double().flatten() for name in names])
    return float((given - wanted).norm() / wanted.norm())


def test_gradient_checkpointing_changes_nothing():
    model, batch = build("llama")
    expected = loop(model, batch, {"score": "log_odds"})
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    # transformers checkpoints in train mode only; this model has no dropout
    found = measure_importance(model, [batch], score="log_odds", mode="train")
    assert_equal(found.values, expected)
    assert set(found.paths.values()) == {"rule"}


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_and_two_images_are_exact(side):
    model, batch = build("llava", images=2, side=side)
    found = measure_importance(model, [batch], score="log_odds")
    assert_equal(found.values, loop(model, batch, {"score": "log_odds"}))


def test_the_two_sides_of_padding_agree():
    model, _ = build("llama")
    left = measure_importance(model, [make_rows(LENGTHS, "left")])
    right = measure_importance(model, [make_rows(LENGTHS, "right")])
    assert_equal(left.values, {name: value.double() for name, value in right.values.items()})


@pytest.mark.parametrize(
    "options", SCORES, ids=lambda options: "-".join(map(str, options.values()))
)
def test_an_answer_of_one_token_is_a_class(options):
    torch.manual_seed(1)
    logits = torch.randn(6, 9, requires_grad=True)
    labels = torch.arange(6) % 9
    estimator = Estimator(**options)
    plain = {key: value for key, value in options.items() if key in ("score", "centered")}
    if options["score"] == "output_norm":
        plain.setdefault("centered", True)
    if "candidates" in options:
        pytest.skip("classes have no such choice")
    position = torch.arange(6)
    text = score_answers(estimator, logits[:, None], labels[:, None], position)
    (classes,) = score_examples(Estimator(**plain), logits, labels, position)
    found = torch.autograd.grad(text.sum(), logits, retain_graph=True)
    expected = torch.autograd.grad(classes.sum(), logits)
    assert_close(text, classes, rtol=1e-6, atol=1e-6)
    assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("margin", [5.0, 30.0, 90.0, 300.0])
def test_log_odds_of_a_sequence_are_right_however_sure_the_model_is(margin):
    logits = torch.zeros(1, 3, 4)
    logits[0, 0, 1] = margin
    logits[0, 1, 2] = margin + 3
    logits[0, 2, 3] = 2 * margin
    logits.requires_grad_()
    labels = torch.tensor([[1, 2, 3]])
    score = score_answers(
        Estimator(score="log_odds"), logits, labels, torch.zeros(1, dtype=torch.long)
    )
    (found,) = torch.autograd.grad(score.sum(), logits)
    # doubts 1 - p_t are 3 exp(-m_t): those of the first two tokens are as 1 to exp(-3)
    share = 1 / (1 + torch.exp(torch.tensor(-3.0)))
    assert found.isfinite().all()
    assert_close(found[0, 0, 1], share, rtol=1e-2, atol=0)
    assert_close(found[0, 1, 2], 1 - share, rtol=2e-2, atol=0)
    assert float(found[0, 2, 3]) <= 2 * float(torch.exp(torch.tensor(-margin)))


def test_sampled_tokens_belong_to_the_example_and_not_to_its_batch():
    model, batch = build("llama")
    whole = measure_importance(model, [batch], labels="sampled", seed=3)
    halves = [
        {key: value[rows] for key, value in batch.items()} for rows in (slice(2), slice(2, None))
    ]
    apart = measure_importance(model, halves, labels="sampled", seed=3)
    assert_equal(apart.values, {name: value.double() for name, value in whole.values.items()})
    other = measure_importance(model, [batch], labels="sampled", seed=4)
    assert not torch.equal(other.values["lm_head.weight"], whole.values["lm_head.weight"])


def test_sampled_tokens_come_from_the_model():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0]).expand(4000, 2, 4).clone().requires_grad_()
    labels = torch.zeros(4000, 2, dtype=torch.long)
    score = score_answers(Estimator(labels="sampled"), logits, labels, torch.arange(4000))
    (gradient,) = torch.autograd.grad(score.sum(), logits)
    # the gradient of the cross entropy is p - y
    drawn = (logits.softmax(-1) - gradient).detach().mean(dim=(0, 1))
    assert_close(drawn, logits[0, 0].softmax(0).detach(), rtol=0, atol=0.02)


@pytest.mark.parametrize("kind", ["token classifier", "masked language model"])
def test_labels_of_the_same_place_are_not_shifted(kind):
    torch.manual_seed(2)
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
    }
    config = transformers.BertConfig(vocab_size=20, num_labels=5, **sizes)
    if kind == "token classifier":
        model = transformers.BertForTokenClassification(config).eval()
    else:
        model = transformers.BertForMaskedLM(config).eval()
    labels = torch.tensor([[-100, 1, 2, -100], [3, -100, 4, 0]])
    batch = {"input_ids": torch.randint(1, 20, (2, 4)), "labels": labels}
    found = measure_importance(model, [batch], score="plain")
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for row in range(2):
        counted = labels[row] != -100
        logits = model(input_ids=batch["input_ids"][row : row + 1]).logits[0, counted]
        loss = nn.functional.cross_entropy(logits, labels[row, counted], reduction="sum")
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        for name, gradient in zip(expected, gradients, strict=True):
            if gradient is not None:
                expected[name] += gradient.square() / 2
    assert_equal(found.values, {name: value.double() for name, value in expected.items()})


def test_an_answer_without_a_token_is_named():
    model, batch = build("llama")
    batch["labels"][2] = -100
    with pytest.raises(ValueError, match="example 2 of a batch has no token that counts"):
        measure_importance(model, [batch])


def test_the_first_token_of_a_row_does_not_count_as_in_the_loss_of_transformers():
    model, batch = build("llama")
    labels = batch["labels"].clone()
    whole = measure_importance(model, [batch])
    labels[1:, 0] = 3
    found = measure_importance(model, [{**batch, "labels": labels}])
    assert_equal(found.values, {name: value.double() for name, value in whole.values.items()})


def test_answers_in_words_are_scored_by_their_log_odds_unless_something_else_is_chosen():
    model, batch = build("llama")
    assert measure_importance(model, [batch]).estimator == Estimator(score="log_odds")
    assert measure_importance(model, [batch], length="mean").estimator.score == "log_odds"
    assert measure_importance(model, [batch], odds="token").estimator.odds == "token"
    assert measure_importance(model, [batch], score="plain").estimator == Estimator()
    assert measure_importance(model, [batch], Estimator()).estimator == Estimator()
    pair = (torch.rand(2, 3), torch.tensor([0, 1]))
    assert measure_importance(nn.Linear(3, 2), [pair]).estimator == Estimator()


def test_a_plain_module_must_say_what_its_logits_speak_of():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    model.forward = lambda input_ids: nn.Sequential.forward(model, input_ids)
    ids = torch.randint(9, (2, 3))
    with pytest.raises(TypeError, match="the same token or the next one: give forward="):
        measure_importance(model, [{"input_ids": ids, "labels": ids}])


def make_trainer(model, data, folder, **options):
    """TRL's trainer with a tokenizer of words."""
    trl = pytest.importorskip("trl", reason="pip install trl")
    import tokenizers

    names = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(VOCABULARY - 3))]
    places = {name: place for place, name in enumerate(names)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(places, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    args = trl.SFTConfig(
        str(folder),
        max_steps=3,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    return trl.SFTTrainer(model, args, train_dataset=data, processing_class=tokenizer, **options)


@pytest.fixture
def fresh_accelerate():
    """Accelerate keeps its settings, such as TRL's 16 bits, for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.mark.parametrize("kind", ["prompt and completion", "text"])
def test_the_callback_holds_the_adapters_inside_trl(kind, tmp_path, fresh_accelerate):
    rows = [{"text": f"w{i} w{i + 1} w{i + 2}"} for i in range(8)]
    if kind != "text":
        rows = [{"prompt": f"w{i} w{i + 1}", "completion": f" w{i + 2} w3"} for i in range(8)]
    data = datasets.Dataset.from_list(rows)
    model, _ = build("llama")
    lora = peft.LoraConfig(r=2, target_modules="all-linear")
    first = make_trainer(model, data, tmp_path, peft_config=lora)
    first.train()
    importance = measure_importance(first.model, first.get_train_dataloader())
    assert importance.examples == 8
    assert set(importance.paths.values()) == {"rule"}
    moved = {}
    for strength in (0.0, 1e6):
        model = copy.deepcopy(first.model)
        manager = ConsolidationManager(model, strength=strength)
        manager.consolidate(importance)
        second = make_trainer(model, data, tmp_path, callbacks=[ConsolidationCallback(manager)])
        second.train()
        manager.strength = 1.0
        moved[strength] = float(manager.penalty())
    assert 0 < moved[1e6] < moved[0.0] / 2


def test_a_question_answering_batch_is_refused_with_the_remedy():
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long), "start_positions": torch.zeros(2)}
    with pytest.raises(
        TypeError, match=r"a dictionary of input_ids, start_positions.*start and end of an answer"
    ):
        measure_importance(nn.Linear(3, 2), [batch])


def test_all_labels_are_refused_for_text():
    model, batch = build("llama")
    with pytest.raises(ValueError, match=r"labels 'all'.*use 'sampled'"):
        measure_importance(model, [batch], labels="all")


def test_a_weight_is_refused_for_text():
    model, batch = build("llama")
    with pytest.raises(ValueError, match="weight 'probability' needs class ids, found text"):
        measure_importance(model, [batch], weight="probability")


@pytest.mark.parametrize("options", [{"length": "mean"}, {"score": "log_odds", "odds": "token"}])
def test_choices_for_text_are_refused_for_classes(options):
    with pytest.raises(ValueError, match="is for answers in words"):
        measure_importance(nn.Linear(3, 2), [(torch.rand(2, 3), torch.tensor([0, 1]))], **options)
