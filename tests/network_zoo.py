"""Small networks of every kind that users measure, each with a batch it can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

EXAMPLES = 5
CLASSES = 3
WORDS = 23
LENGTH = 6

Batch = tuple[Tensor, Tensor] | dict[str, Tensor]


def labels() -> Tensor:
    return torch.arange(EXAMPLES) % CLASSES


def vectors() -> Batch:
    return torch.randn(EXAMPLES, 7), labels()


def sequences() -> Batch:
    return torch.randn(EXAMPLES, LENGTH, 7), labels()


def images() -> Batch:
    return torch.randn(EXAMPLES, 3, 8, 8), labels()


def words() -> Batch:
    return torch.randint(1, WORDS, (EXAMPLES, LENGTH)), labels()


def hf_words() -> Batch:
    mask = torch.ones(EXAMPLES, LENGTH, dtype=torch.long)
    mask[1, -2:] = 0
    return {"input_ids": words()[0], "attention_mask": mask, "labels": labels()}


def hf_images() -> Batch:
    return {"pixel_values": torch.randn(EXAMPLES, 3, 32, 32), "labels": labels()}


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any):
        super().__init__()
        self.core = kind(7, 6, batch_first=True, **options)
        self.head = nn.Linear(6 * (2 if options.get("bidirectional") else 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(x)[0][:, -1])


class Cells(nn.Module):
    """One cell, used at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(7, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 6)
        for position in range(x.shape[1]):
            state = self.cell(x[:, position], state)
        return self.head(state)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(7, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.lift(x)
        return self.head(self.norm(hidden + self.attention(hidden, hidden, hidden)[0]).mean(dim=1))


class SequenceFirst(nn.Module):
    """torch's own Transformer, positions before examples."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(7, 8)
        self.core = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(self.lift(x).transpose(0, 1)).mean(dim=0))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, 6, mode="mean")
        self.head = nn.Linear(6, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.bag(ids))


class Tied(nn.Module):
    """A word table that is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 6)
        self.core = nn.Linear(6, 6)
        self.output = nn.Linear(6, WORDS, bias=False)
        self.output.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.core(self.table(ids)).tanh().mean(dim=1))


class Experts(nn.Module):
    """A mixture of experts: every example is routed to one of them, and some get none."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(7, 4)
        self.experts = nn.ModuleList(nn.Linear(7, 6) for _ in range(4))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(dim=1)
        chosen = weights.argmax(dim=1)
        hidden = torch.zeros(len(x), 6, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                found = expert(x[rows]) * weights[rows, number, None]
                hidden = hidden.index_add(0, rows, found.to(hidden.dtype))
        return self.head(hidden)


class Shared(nn.Module):
    """One layer, used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 7)
        self.head = nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x).tanh()
        return self.head(x)


class Encoder(nn.Module):
    """The encoder of a T5, averaged."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.T5Config(
            vocab_size=WORDS,
            d_model=16,
            d_kv=8,
            d_ff=24,
            num_layers=2,
            num_heads=2,
            dropout_rate=0.0,
        )
        self.encoder = transformers.T5EncoderModel(config)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(input_ids=ids).last_hidden_state.mean(dim=1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, CLASSES))


def deep() -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 8), nn.GELU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, groups=2),
        nn.GroupNorm(2, 6),
        nn.Flatten(),
        nn.Linear(54, CLASSES),
    )


def transposed() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(3, 4, 3),
        nn.InstanceNorm2d(4, affine=True),
        nn.Flatten(),
        nn.Linear(400, CLASSES),
    )


def in_time() -> nn.Module:
    return nn.Sequential(nn.Conv1d(LENGTH, 5, 3), nn.PReLU(), nn.Flatten(), nn.Linear(25, CLASSES))


def root_mean_square() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 8), nn.RMSNorm(8), nn.SiLU(), nn.Linear(8, CLASSES))


def weight_normed() -> nn.Module:
    return nn.Sequential(weight_norm(nn.Linear(7, 6)), nn.Tanh(), nn.Linear(6, CLASSES))


def spectral_normed() -> nn.Module:
    return nn.Sequential(spectral_norm(nn.Linear(7, 6)), nn.Tanh(), nn.Linear(6, CLASSES))


TEXT = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT |= {
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "num_labels": CLASSES,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
VISION |= {"image_size": 32, "patch_size": 8, "num_labels": CLASSES}


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**TEXT))


def distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=WORDS,
        dim=16,
        n_layers=2,
        n_heads=2,
        hidden_dim=24,
        max_position_embeddings=12,
        num_labels=CLASSES,
    )
    return transformers.DistilBertForSequenceClassification(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=12,
        num_labels=CLASSES,
        pad_token_id=0,
    )
    return transformers.GPT2ForSequenceClassification(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(**TEXT, num_key_value_heads=1)
    return transformers.LlamaForSequenceClassification(config)


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(**VISION))


def dinov2() -> nn.Module:
    return transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**VISION))


def convnext() -> nn.Module:
    config = transformers.ConvNextConfig(
        depths=[1, 1], hidden_sizes=[8, 12], num_stages=2, num_labels=CLASSES
    )
    return transformers.ConvNextForImageClassification(config)


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 12],
        depths=[1, 1],
        layer_type="basic",
        num_labels=CLASSES,
    )
    return transformers.ResNetForImageClassification(config)


def mobilenet() -> nn.Module:
    config = transformers.MobileNetV2Config(depth_multiplier=0.1, num_labels=CLASSES, image_size=32)
    return transformers.MobileNetV2ForImageClassification(config)


def lora_bert() -> nn.Module:
    adapter = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    model = peft.get_peft_model(bert(), adapter)
    for name, parameter in model.named_parameters():
        # peft starts these at zero, which would leave their partners without a gradient
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return model


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "mlp": (mlp, vectors),
    "deep": (deep, vectors),
    "shared": (Shared, vectors),
    "experts": (Experts, vectors),
    "rms-norm": (root_mean_square, vectors),
    "weight-norm": (weight_normed, vectors),
    "spectral-norm": (spectral_normed, vectors),
    "cnn": (cnn, images),
    "transposed": (transposed, images),
    "conv1d": (in_time, sequences),
    "rnn": (lambda: Recurrent(nn.RNN), sequences),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), sequences),
    "gru": (lambda: Recurrent(nn.GRU), sequences),
    "gru-cell": (Cells, sequences),
    "attention": (Attention, sequences),
    "transformer": (SequenceFirst, sequences),
    "bag": (Bag, words),
    "tied": (Tied, words),
    "t5-encoder": (Encoder, words),
    "bert": (bert, hf_words),
    "distilbert": (distilbert, hf_words),
    "gpt2": (gpt2, hf_words),
    "llama": (llama, hf_words),
    "lora-bert": (lora_bert, hf_words),
    "vit": (vit, hf_images),
    "dinov2": (dinov2, hf_images),
    "convnext": (convnext, hf_images),
    "resnet": (resnet, hf_images),
    "mobilenet": (mobilenet, hf_images),
}


def build(name: str) -> tuple[nn.Module, Batch]:
    """Return a network with weights far from their start, in eval mode, and its batch."""
    make_model, make_batch = ZOO[name]
    torch.manual_seed(3)
    model = make_model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    for module in model.modules():
        # statistics that are not those of the batch
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model, make_batch()
