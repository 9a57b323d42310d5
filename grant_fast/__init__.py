"""Fast flexible graph convolutional networks, and GraNT: the teacher that picks the graphs.

Graphs and what is learned of them:

- `PackedGraphs`: a data set in a few flat tensors, from SMILES, PyG's graphs, arrays or a file.
- `GraphBatch`: some of its graphs, `graphs.batch(positions)`, with PyG's attributes.
- `Task`: what the targets are, and whether they belong to graphs or to nodes.
- `load_dataset`: graphs, task and split from a file, a name or a `PackedGraphs`.

Networks:

- `FlexConv`: the layer, in place of PyG's `TAGConv`; `FlexGCN`: a network of such layers.
- `AtomEncoder`: embeds the atoms of molecules, as `FlexGCN(…, encoder="atom")` does.
- `explain`: what computes each layer of a network, and why.

Teaching:

- `GraNTSampler`: a batch sampler for any model that serves the graphs it does worst on.
- `score_graphs`: how wrong a model is on each graph; `select_graphs`: picks the worst by scores.
- `grant_fast.teaching.loss`: the loss of a `Task`; missing targets are ignored.

Runs, as on the command line:

- `train`: a run into a folder; `load_predictor`: its network, ready to predict.
- `record_steps`: records the steps of a loop of your own on a GPU, as `train` does.

`InputError` is raised for wrong input, and names the culprit and the remedy.
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
    "record_steps": "training.loop",
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
    "record_steps",
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
    from .training.loop import record_steps
    from .training.predict import load_predictor
    from .training.run import train


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that `import grant_fast` costs next to nothing.
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module 'grant_fast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
