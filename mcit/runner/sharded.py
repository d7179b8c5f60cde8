"""What of a plan cannot be learned on weights that are divided among processes."""

from __future__ import annotations

from mcit.parallel.fsdp import WHOLE_FILE, wants_sharding
from mcit.parallel.launch import choose_precision
from mcit.registry import METHOD, find_method, list_names
from mcit.runner.plan import Plan
from mcit.task import Track


def find_sharded_problems(plan: Plan) -> list[str]:
    """Return why this plan cannot be learned as the launcher divides weights, if it does."""
    if not wants_sharding():
        return []
    problems = []
    if plan.track is Track.CLASSES:
        problems.append(
            "class-incremental runs are not sharded: their heads gain rows, and their networks fit "
            f"one device; launch it with {WHOLE_FILE}"
        )
    unfit = [part.name for part in plan.method.parts() if not part.works_sharded]
    if unfit:
        able = [name for name in list_names(METHOD) if find_method(name).works_sharded]
        problems.append(
            f"method {unfit[0]!r} needs whole weights in every process; launch it with "
            f"{WHOLE_FILE}, or choose one that works on sharded ones ({', '.join(able)})"
        )
    if choose_precision(plan.config.training.mixed_precision) == "fp16":
        problems.append(
            "training.mixed_precision is 'fp16', whose loss scaling does not know sharded "
            "gradients: use 'bf16' or 'no'"
        )
    return problems
