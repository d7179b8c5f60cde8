"""Plain PyTorch: one small network learns three tasks, one after the other.

Without protection later tasks overwrite the first. The lines marked (mcit) are all that EWC and
EWC-DR add to the loop. Nothing is downloaded; it takes some seconds.

    python examples/plain_pytorch.py
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mcit import ConsolidationManager, measure_importance

# score of the estimator, strength of the penalty
METHODS = {"finetune": (None, 0.0), "EWC": ("plain", 1000.0), "EWC-DR": ("reversed", 1.0)}
TASKS = (1, 2, 3)


def make_task(task: int, split: int) -> TensorDataset:
    """Return 1000 points around ten centers, their classes; every task has its own ten."""
    centers = torch.randn(10, 20, generator=torch.Generator().manual_seed(task))
    generator = torch.Generator().manual_seed(1000 * task + split)
    labels = torch.randint(0, 10, (1000,), generator=generator)
    noise = torch.randn(1000, 20, generator=generator)
    return TensorDataset(centers[labels] + 0.5 * noise, labels)


def learn(model: nn.Module, data: TensorDataset, manager: ConsolidationManager) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        for inputs, target in DataLoader(data, batch_size=50, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), target).backward()
            # (mcit) adds strength * importance * (weight - anchor), without a graph
            manager.add_gradient_()
            optimizer.step()


@torch.no_grad()
def score(model: nn.Module, data: TensorDataset) -> float:
    inputs, target = data.tensors
    right = model(inputs).argmax(dim=1) == target
    return 100 * right.float().mean().item()


def learn_all(estimator: str | None, strength: float) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 10))
    # (mcit) holds nothing until something is consolidated
    manager = ConsolidationManager(model, strength=strength)
    for task in TASKS:
        data = make_task(task, split=0)
        learn(model, data, manager)
        if estimator is not None:
            # (mcit) squared gradients of the examples of the task just learned, exactly
            loader = DataLoader(data, batch_size=100)
            manager.consolidate(measure_importance(model, loader, score=estimator))
    return model


def main() -> None:
    print("accuracy at the end  task 1  task 2  task 3")
    for name, (estimator, strength) in METHODS.items():
        model = learn_all(estimator, strength)
        scores = [score(model, make_task(task, split=1)) for task in TASKS]
        print(f"{name:19}" + "".join(f"{value:8.1f}" for value in scores))


if __name__ == "__main__":
    main()
