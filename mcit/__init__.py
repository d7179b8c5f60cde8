"""mcit: continual learning of vision-language models, with exact, named importance."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcit.api import LoadedRun as LoadedRun
    from mcit.api import load_run as load_run
    from mcit.api import run as run
    from mcit.callback import ConsolidationCallback as ConsolidationCallback
    from mcit.consolidating import ConsolidatingMethod as ConsolidatingMethod
    from mcit.consolidation import ConsolidationManager as ConsolidationManager
    from mcit.estimator import Estimator as Estimator
    from mcit.estimator import PeerSetting as PeerSetting
    from mcit.estimator import peer as peer
    from mcit.importance import Importance as Importance
    from mcit.importance import measure_importance as measure_importance
    from mcit.method import Method as Method
    from mcit.method import Outcome as Outcome
    from mcit.method import Stage as Stage
    from mcit.method import Step as Step
    from mcit.models.backbone import Backbone as Backbone
    from mcit.path_integral import PathIntegral as PathIntegral
    from mcit.task import Head as Head
    from mcit.task import Recipe as Recipe
    from mcit.task import Task as Task
    from mcit.task import Track as Track

__version__ = "0.2.0"

# resolved on first use, so that `import mcit` and `mcit --help` do not wait for torch
_EXPORTS = {
    "Backbone": "mcit.models.backbone",
    "ConsolidatingMethod": "mcit.consolidating",
    "ConsolidationCallback": "mcit.callback",
    "ConsolidationManager": "mcit.consolidation",
    "Estimator": "mcit.estimator",
    "Head": "mcit.task",
    "Importance": "mcit.importance",
    "LoadedRun": "mcit.api",
    "Method": "mcit.method",
    "Outcome": "mcit.method",
    "PathIntegral": "mcit.path_integral",
    "PeerSetting": "mcit.estimator",
    "Recipe": "mcit.task",
    "Stage": "mcit.method",
    "Step": "mcit.method",
    "Task": "mcit.task",
    "Track": "mcit.task",
    "load_run": "mcit.api",
    "measure_importance": "mcit.importance",
    "peer": "mcit.estimator",
    "run": "mcit.api",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'mcit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, which are not there until they are used, for help and completion."""
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "import_module"})
