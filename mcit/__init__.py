"""mcit: multimodal continual instruction tuning, with importance and consolidation that are right, named and fast."""

from importlib import import_module

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
