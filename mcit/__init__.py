"""mcit: multimodal continual instruction tuning, with importance and consolidation that are right, named and fast."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcit.callback import ConsolidationCallback as ConsolidationCallback
    from mcit.consolidation import ConsolidationManager as ConsolidationManager
    from mcit.consolidation import PathIntegral as PathIntegral
    from mcit.importance import Estimator as Estimator
    from mcit.importance import Importance as Importance
    from mcit.importance import measure_importance as measure_importance

__version__ = "0.1.0"

# Resolved on first use, so that `import mcit` and `mcit --help` do not wait for torch.
_EXPORTS = {
    "ConsolidationManager": "mcit.consolidation",
    "PathIntegral": "mcit.consolidation",
    "Estimator": "mcit.importance",
    "Importance": "mcit.importance",
    "measure_importance": "mcit.importance",
    "ConsolidationCallback": "mcit.callback",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'mcit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, which are not there until they are used: for `help(mcit)` and for completion."""
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "import_module"})
