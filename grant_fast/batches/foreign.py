"""PyG's names that packed graphs do not have, and what to write instead."""

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


def no_such(thing: Any, name: str, of_batch: bool) -> AttributeError:
    """The error where a batch or a data set has no attribute of this name."""
    kind = type(thing).__name__
    instead = _OF_BATCHES.get(name, _LEFT_OUT) if of_batch else _OF_DATASETS.get(name, _BY_HELP)
    return AttributeError(f"a {kind} has no {name!r}: {instead}", name=name, obj=thing)
