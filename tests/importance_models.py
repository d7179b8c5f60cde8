"""Small models that use parameters in all the ways that per-example gradients must survive."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations


class ConvNet(nn.Module):
    """A ResNet in small: BatchNorm, in-place ReLU, a residual with a 1x1 shortcut."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm0 = nn.BatchNorm2d(4)
        self.conv1 = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(6)
        self.shortcut = nn.Sequential(nn.Conv2d(4, 6, 1, stride=2, bias=False), nn.BatchNorm2d(6))
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6, 4)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.3)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
                nn.init.uniform_(module.weight, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm0(self.stem(x)))
        inner = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        inner += self.shortcut(x)
        return self.fc(self.relu(inner).mean(dim=(2, 3)))


class Convolutions(nn.Module):
    """Every form of Conv2d, one of which no rule covers (`reflect`)."""

    def __init__(self):
        super().__init__()
        self.same = nn.Conv2d(3, 4, (2, 3), padding="same")
        self.dilated = nn.Conv2d(4, 4, 3, dilation=2, padding=2)
        self.reflect = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4, padding=1)
        self.grouped = nn.Conv2d(4, 6, 3, stride=2, groups=2, padding=1)
        self.group_norm = nn.GroupNorm(3, 6)
        self.point = nn.Conv2d(6, 5, 1)
        self.whole = nn.LayerNorm((5, 3, 3))
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.dilated(torch.tanh(self.same(x))))
        x = torch.tanh(self.depthwise(torch.tanh(self.reflect(x))))
        x = self.whole(self.point(torch.tanh(self.group_norm(self.grouped(x)))))
        return self.fc(torch.tanh(x).mean(dim=(2, 3)))


class Reader(nn.Module):
    """A text encoder with a class token, places, a learned scale, and a layer that nothing uses."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 6, padding_idx=0)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.places = nn.Parameter(torch.randn(1, 6, 6))
        self.scale = nn.Parameter(torch.tensor(1.3))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.mlp = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))
        self.batch_norm = nn.BatchNorm1d(6)
        self.fc = nn.Linear(6, 4)
        self.unused = nn.Linear(6, 6)
        nn.init.uniform_(self.batch_norm.running_var, 0.5, 2.0)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(ids), -1, -1), self.words(ids)], dim=1) + self.places
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.scale * self.mlp(self.norm(x))
        return self.fc(self.batch_norm(x[:, 0]))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 5)
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.fc = nn.Linear(6, 4)

    def forward(self, ids: Tensor) -> Tensor:
        states, (last, _) = self.lstm(self.words(ids))
        return self.fc(states.mean(dim=1) + last[0])


class Tied(nn.Module):
    """The embedding is the output layer; one weight under two modules, or used functionally."""

    def __init__(self, functional: bool):
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.inner = nn.Linear(6, 6)
        self.output = None if functional else nn.Linear(6, 9, bias=False)
        if self.output is not None:
            self.output.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.tanh(self.inner(self.words(ids))).mean(dim=1)
        return F.linear(x, self.words.weight) if self.output is None else self.output(x)


class Functional(nn.Module):
    """A layer whose weight is also used outside it, or only there; `share` scales that use."""

    def __init__(self, share: float, called: bool = True):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.fc = nn.Linear(6, 4)
        self.share = share
        self.called = called

    def forward(self, x: Tensor) -> Tensor:
        own = self.layer(x) if self.called else 0.0
        return self.fc(torch.tanh(own + self.share * F.linear(x.flip(-1), self.layer.weight)))


class Thrice(nn.Module):
    """One layer used on three inputs of different lengths, the second time upon its own output."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        long = torch.tanh(
            self.layer(x[:, None] * torch.linspace(0.5, 2, 5, dtype=x.dtype)[:, None])
        )
        short = torch.tanh(self.layer(self.norm(long[:, :2])))
        return self.fc(self.layer(x) + self.norm(short.mean(dim=1)))


class Parametrized(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = parametrizations.weight_norm(nn.Linear(6, 5))
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.layer(x)))


class Unbatched(nn.Module):
    """Layers that read a learned vector or table, not the examples: no rows per example there."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.table = nn.Parameter(torch.randn(*shape))
        self.norm = nn.LayerNorm(6)
        self.project = nn.Linear(6, 6)
        self.inner = nn.Linear(6, 6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        prompt = self.project(self.norm(self.table)).reshape(-1, 6).mean(dim=0)
        return self.fc(torch.tanh(self.inner(x) * prompt))


class TimeFirst(nn.Module):
    """Rows that are positions, not examples."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.inner = nn.Linear(6, 6)
        self.fc = nn.Linear(6, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.inner(self.words(ids.T))).mean(dim=0))


class Late(nn.Module):
    """A layer that only inputs with a large first number reach."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.late = nn.Linear(6, 6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.tanh(self.inner(x))
        return self.fc(inner + self.late(inner) if bool((x[:, 0] > 5).any()) else inner)


class Views(nn.Module):
    """As many rows per example as its input has, all in one batch, in either order."""

    def __init__(self, layout: str):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.fc = nn.Linear(6, 4)
        self.layout = layout

    # [batch, views, 6]
    def forward(self, x: Tensor) -> Tensor:
        batch, views, _ = x.shape
        if self.layout == "consecutive":
            return self.fc(
                torch.tanh(self.inner(x.reshape(-1, 6))).view(batch, views, 6).sum(dim=1)
            )
        rows = x.transpose(0, 1).reshape(-1, 6)
        return self.fc(torch.tanh(self.inner(rows)).view(views, batch, 6).sum(dim=0))


def vectors(count: int) -> Tensor:
    return torch.randn(count, 6)


def pictures(count: int) -> Tensor:
    return torch.randn(count, 3, 6, 6)


def sentences(count: int) -> Tensor:
    return torch.randint(1, 9, (count, 5)) * (torch.arange(5) < torch.randint(2, 6, (count, 1)))
