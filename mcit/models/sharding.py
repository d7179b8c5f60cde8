"""A backbone whose weights are divided among processes (FSDP2), block by block.

Every process holds a part of each weight, and of its gradient, its moments, its importance and its
anchor. A block's weights are whole while it computes, and no longer.

Whole in every process stay heads, which gain rows between tasks, and, where a backbone has
adapters, all that trains: adapters are small, methods put pairs of them next to each other, and
their importance can then be measured by every process on examples of its own.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from mcit.models.backbone import Backbone


def shard(backbone: Backbone, device: torch.device, adapted: bool) -> None:
    """Divide the weights of a backbone among all processes, each part on its device.

    adapted: whether it has adapters.
    """
    # imported late: a run in one process does not need them
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # features may be a view of what a layer returned; nobody writes into them
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    whole = {p for p in backbone.parameters() if p.requires_grad and adapted}
    for parameter in whole:
        parameter.data = parameter.data.to(device)
    options: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (dist.get_world_size(),)),
        "ignored_params": whole,
    }
    for module in (*find_blocks(backbone), backbone.entry()):
        # between passes all weights are in parts, also after one without gradients
        fully_shard(module, reshard_after_forward=True, **options)
    for method in backbone.entry_methods:
        register_fsdp_forward_method(backbone.entry(), method)


def find_blocks(backbone: Backbone) -> list[nn.Module]:
    """Return the parts that are gathered one after the other: the members of lists of modules.

    Lists within such a part, as of experts, belong to it.
    """
    blocks: list[nn.Module] = []
    inside: set[nn.Module] = set()
    # a module comes before those within it
    for module in backbone.modules():
        if not isinstance(module, nn.ModuleList) or module in inside:
            continue
        for block in module:
            blocks.append(block)
            inside.update(block.modules())
    return blocks
