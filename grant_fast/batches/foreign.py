"""PyG's names that packed graphs do not have, and what to write instead."""

from collections.abc import Callable
from typing import Any

_EACH = (
    "write [Data(x=b.x, edge_index=b.edge_index, edge_weight=b.edge_weight, "
    "edge_attr=b.edge_attr, y=b.y) for b in"
)
_OF_BOTH = {
    "cpu": 'write .to("cpu")',
    "cuda": 'write .to("cuda")',
    "num_edge_features": "write edge_attr.shape[1]",
}
_OF_BATCHES = _OF_BOTH | {
    "clone": "it is read-only, so there is no need to",
    "detach": "it is read-only, so there is no need to",
    "to_data_list": f"{_EACH} graphs[batch.positions]]",
}
_OF_DATASETS = _OF_BOTH | {
    "double": "write .to(torch.float64)",
    "edge_index": "write graphs.batch(slice(None)).edge_index",
    "float": "write .to(torch.float32)",
    "index_select": "write graphs[positions]",
    "num_classes": "load_dataset(graphs).task tells how many outputs the targets need",
    "shuffle": "write graphs[torch.randperm(len(graphs))]",
    "to_data_list": f"{_EACH} graphs]",
}
_LEFT_OUT = (
    "packed graphs carry only x, edge_index, edge_weight, edge_attr and y; if a model needs more, "
    "give the sampler and the loader PyG's data set itself"
)
_BY_HELP = "help(PackedGraphs) tells what it has"


def no_such(of_batch: bool) -> Callable[[Any, str], Any]:
    """The `__getattr__` of batches, or of data sets."""
    names, others = (_OF_BATCHES, _LEFT_OUT) if of_batch else (_OF_DATASETS, _BY_HELP)

    def __getattr__(self: Any, name: str) -> Any:
        """What is not there, such as some of PyG's attributes."""
        if name.startswith("_") or hasattr(type(self), name):
            return self.__getattribute__(name)  # fails again, and says what is wrong
        message = f"a {type(self).__name__} has no {name!r}: {names.get(name, others)}"
        raise AttributeError(message, name=name, obj=self)

    return __getattr__
