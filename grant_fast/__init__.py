"""Fast flexible graph convolutional networks, and GraNT: the teacher that picks the graphs.

Quick start::

    from grant_fast import FlexGCN, GraNTSampler, PackedGraphs
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "AtomEncoder": "nn",
    "FlexConv": "nn",
    "FlexGCN": "nn",
    "GraNTSampler": "teaching",
    "GraphBatch": "batches",
    "InputError": "errors",
    "PackedGraphs": "graphs",
    "Task": "tasks",
    "explain": "nn.paths",
    "load_dataset": "data.load",
    "load_predictor": "training.predict",
    "score_graphs": "teaching",
    "select_graphs": "teaching",
    "train": "training.run",
}
__all__ = [
    "AtomEncoder",
    "FlexConv",
    "FlexGCN",
    "GraNTSampler",
    "GraphBatch",
    "InputError",
    "PackedGraphs",
    "Task",
    "__version__",
    "explain",
    "load_dataset",
    "load_predictor",
    "score_graphs",
    "select_graphs",
    "train",
]

if TYPE_CHECKING:
    from .batches import GraphBatch
    from .data.load import load_dataset
    from .errors import InputError
    from .graphs import PackedGraphs
    from .nn import AtomEncoder, FlexConv, FlexGCN
    from .nn.paths import explain
    from .tasks import Task
    from .teaching import GraNTSampler, score_graphs, select_graphs
    from .training.predict import load_predictor
    from .training.run import train


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that `import grant_fast` costs next to nothing.
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module 'grant_fast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
