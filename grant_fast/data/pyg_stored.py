"""Data sets that PyG holds in memory, where all graphs lie one after another.

Asked for a graph, PyG makes a `Data` and keeps it; to pack them all, none need be made.
"""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from ..indexing import sizes_to_ptr, spans
from ..tasks import has_labels_outside
from .pyg_rows import INTEGERS, USUAL, GraphRows, Rows, as_targets

#: The axis along which PyG joins the graphs' attributes.
_AXES = {"x": 0, "edge_index": 1, "edge_weight": 0, "edge_attr": 0, "y": 0}


def stored_rows(dataset: Any) -> GraphRows | None:
    """What an `InMemoryDataset` holds, or a `Subset` of one.

    None where its graphs must be looked at one by one: of other data sets, to transform them, or to
    say what is wrong with them.
    """
    parts = []
    while type(dataset) is Subset:
        parts.append(dataset.indices)
        dataset = dataset.dataset
    store = _store(dataset)
    if store is None:
        return None
    where = np.asarray(dataset.indices(), dtype=np.int64)
    for part in reversed(parts):
        where = where[np.asarray(part, dtype=np.int64)]
    rows = {
        name: _rows(store[name], dataset.slices[name], where, axis)
        for name, axis in _AXES.items()
        if name in store
    }
    x, edges, weight, attr, y = (rows.get(name) for name in _AXES)
    assert x is not None and edges is not None, "_store looked for them"
    if any(of is not None and (of.sizes != edges.sizes).any() for of in (weight, attr)):
        return None
    told = getattr(dataset._data.stores[0], "_num_nodes", None)
    if not len(where) or (told is not None and (np.asarray(told)[where] != x.sizes).any()):
        return None
    if (mask := store.get("train_mask")) is not None:
        if isinstance(mask, Tensor):
            mask = _rows(mask, dataset.slices["train_mask"], where, 0).values
        if has_labels_outside(mask, y and y.values):
            return None
    if weight is not None:
        weight = Rows(weight.sizes, weight.values.reshape(-1).float())
    y = None if y is None else Rows(y.sizes, as_targets(y.values))
    return GraphRows(x, edges, weight, attr, y, left_out={})


def _store(dataset: Any) -> dict[str, Tensor] | None:
    """The attributes that all graphs have, joined; None where some may come in another form."""
    pyg = sys.modules.get("torch_geometric.data")
    if pyg is None or not isinstance(dataset, pyg.InMemoryDataset) or not dataset.slices:
        return None
    kind, usual, data = type(dataset), pyg.InMemoryDataset, dataset._data
    if kind.get is not usual.get or kind.__getitem__ is not usual.__getitem__:
        return None
    if dataset.transform is not None or type(data) is not pyg.Data:
        return None
    held = data.to_dict()
    store = {name: held[name] for name in dataset.slices if held.get(name) is not None}
    if "edge_type" in store or not {"x", "edge_index"} <= store.keys():
        return None
    return store if all(_is_usual(name, store[name]) for name in _AXES if name in store) else None


def _is_usual(name: str, value: Any) -> bool:
    if type(value) is not Tensor or value.layout != torch.strided or value.device.type != "cpu":
        return False
    if name == "edge_index":
        return value.dtype in INTEGERS and value.dim() == 2 and value.shape[0] == 2
    if name == "edge_weight" and value.numel() != len(value):
        return False
    least = 2 if name == "x" else 1
    return value.dtype in USUAL and least <= value.dim() <= 2


def _rows(values: Tensor, slices: Any, where: np.ndarray, axis: int) -> Rows:
    """The rows of the graphs at `where`, by the places where each graph's begin and end."""
    slices, graphs = torch.as_tensor(slices), torch.from_numpy(where)
    first, sizes = slices[graphs], slices.diff()[graphs]
    ptr = sizes_to_ptr(sizes)
    places = spans(first, sizes, ptr, int(ptr[-1]), torch.int64, values.device)
    return Rows(sizes.numpy(), values.detach().index_select(axis, places))
