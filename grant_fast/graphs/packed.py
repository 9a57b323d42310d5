"""A dataset of graphs: what a user indexes, builds from any source, saves and loads."""

import os
import warnings
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from ..batches import GraphBatch
from ..batches.foreign import no_such
from ..batches.layout import joined_csr, joined_ptr
from ..devices import usual_tensors
from ..errors import InputError
from ..indexing import Positions
from ..tasks import Level
from . import storage
from .arrays import GraphArrays
from .flat import FlatGraphs
from .packing import as_tensor, check_finite, pack_arrays, pack_edge_attr, pack_targets

if TYPE_CHECKING:
    from typing_extensions import Self


def _check_no_worker() -> None:
    """A batch needs its dataset, which every batch from another process would bring along anew."""
    if get_worker_info() is not None:
        raise InputError(
            "a PackedGraphs needs no workers, since a batch of it is a list of positions: use "
            "DataLoader(graphs, …, num_workers=0)"
        )


_OF_NODES = {"host_ptr", "kernel_ptr", "max_nodes", "min_nodes"}
_OF_EDGES = {"host_edge_ptr", "bits"}
#: What is kept of each field under a name of its own; more of them lies in `_cache`.
_DERIVED = {
    "x": {"kinds"},
    "ptr": _OF_NODES | _OF_EDGES,
    "adj": {"scale"} | _OF_EDGES,
    "adj_t": _OF_EDGES,
}
#: What `meta` may say of fields (see `data.dataset.Dataset.save`), and forgets with them.
_TOLD = {"y": {"task", "metric", "targets"}, "ids": {"split"}}


class PackedGraphs(FlatGraphs):
    """Many graphs in flat tensors, on one device; a batch of them is a list of positions.

    Build it with `from_arrays`, `from_data_list`, `from_smiles` or `from_dataset`, or `load` it.
    Treat it as immutable, except for `y`: what is derived from it is cached. A `y` that you set is
    checked and packed like one given to `from_arrays`, with missing labels. PyTorch's `DataLoader`
    takes it as it is (`DataLoader(graphs, batch_sampler=sampler)`), without workers, which would
    have nothing to do; PyG's collates only PyG's own `Data`.

    **Shapes** for G graphs of N nodes and E edges in all:
        x [N, F] float, or a narrow integer dtype where the columns are categories ·
        y [G, T] or [N, T] float with NaN for "not measured", [G] or [N] int64 classes, or None ·
        ptr [G + 1] int64, graph i owns nodes ptr[i] … ptr[i+1]-1 ·
        ids [G] int64, the identity of each graph, kept through indexing and reordering ·
        adj, adj_t: the edges by target and by source; adj_t is None where all is symmetric ·
        edge_attr [E, D] or [E] float32 or a narrow integer dtype, in the order of adj, or None: for
        models of your own, as `FlexGCN` reads none ·
        scale [N] = D^{-1/2}, D the weighted in-degree (0 where that is not positive).

    `graphs[i]` is a `GraphBatch` of one graph; `graphs[slice | list | tensor | mask]` is a
    `PackedGraphs` of those graphs, which shares all but some pointers with this one if they are
    contiguous.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        if name in _DERIVED:
            if own.get("_cache") or _DERIVED[name] & own.keys():
                raise InputError(
                    f"values derived from {name} are cached already and would stay in use: set it "
                    "before a model reads the graphs, or pack them again"
                )
            own["_cache"] = {}  # a copy shares that of what it is of
            if name in ("adj", "adj_t"):
                own.pop("_edges_of", None)
        if "meta" in own:  # it is made, of what the packing has checked
            if name in ("edge_index", "edge_weight") and not hasattr(type(self), name):
                raise InputError(
                    f"a PackedGraphs has no {name}, and its batches would not get it: pack the "
                    "graphs again with it, as in PackedGraphs.from_arrays"
                )
            value = self._checked(name, value)
            if name in _TOLD:
                self.meta = {key: fact for key, fact in self.meta.items() if key not in _TOLD[name]}
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # to whom every name would be one
        __getattr__ = no_such(of_batch=False)

    def _checked(self, name: str, value: Any) -> Any:
        """A new value of a field, as packing makes it; InputError where it does not fit these
        graphs."""
        if name in ("y", "edge_attr") and value is None:
            return None
        if name == "y":
            either = self.num_graphs == self.num_nodes
            y, level = pack_targets(
                as_tensor("y", value),
                self.num_graphs,
                self.num_nodes,
                self.y_level if either else None,
                missing_labels=True,
                dtype=torch.float64 if self._is_double else torch.float32,
            )
            super().__setattr__("y_level", level)
            return _apart(y, value).to(self.device)
        if name == "y_level":
            count = {"graph": self.num_graphs, "node": self.num_nodes}.get(value)
            if count is None or (self.y is not None and count != len(self.y)):
                raise InputError(
                    f"y_level={value!r} does not fit y: set y instead, whose rows decide it"
                )
        if name == "edge_attr":
            return pack_edge_attr(as_tensor(name, value), self.num_edges).to(self.device)
        if name in ("x", "ids"):
            rows, dim = (self.num_nodes, 2) if name == "x" else (self.num_graphs, 1)
            if not isinstance(value, Tensor) or value.dim() != dim or len(value) != rows:
                what = "[num_nodes, num_features]" if name == "x" else "[num_graphs]"
                raise InputError(f"{name} must be a tensor {what} of {rows} rows, as it is now")
            if value.layout != torch.strided:
                raise InputError(f"{name} is a sparse tensor: give {name}.to_dense()")
            if name == "x" and not torch._C._are_functorch_transforms_active():
                check_finite(value.detach())
            if name == "ids" and (value.dtype != torch.int64 or (value < 0).any()):
                raise InputError("ids must be int64 and not below 0: give the numbers of rows, say")
        return value

    @property
    def _is_double(self) -> bool:
        """Whether these graphs were converted to float64."""
        kept = (self.x, self.y, vars(self).get("scale"))
        return any(t is not None and t.dtype == torch.float64 for t in kept)

    def __len__(self) -> int:
        return self.num_graphs

    def __repr__(self) -> str:
        y = "None" if self.y is None else f"{self.y_level} {list(self.y.shape)}"
        return (
            f"PackedGraphs(num_graphs={self.num_graphs}, num_nodes={self.num_nodes}, "
            f"num_edges={self.num_edges}, num_features={self.num_features}, y={y})"
        )

    @overload
    def __getitem__(self, where: int) -> GraphBatch: ...

    @overload  # by a tensor of one dimension; one of none is an int
    def __getitem__(self, where: slice | range | Sequence[int] | np.ndarray | Tensor) -> "Self": ...

    def __getitem__(self, where: Positions) -> "GraphBatch | Self":
        if isinstance(where, Tensor) and where.dim() == 0 and not where.is_floating_point():
            where = int(where)
        if isinstance(where, Integral):
            where = int(where)
            _check_no_worker()
            if not -self.num_graphs <= where < self.num_graphs:
                raise IndexError(
                    f"there is no graph {where}: this dataset holds {self.num_graphs}, and numbers "
                    "them from 0"
                )
            return self.batch([where])
        return self.subset(where)

    def __getitems__(self, where: list[int]) -> list[GraphBatch]:
        # torch's DataLoader fetches a batch sampler's lists through this; `batches.collate`
        # follows.
        _check_no_worker()
        return [self.batch(where)]

    # Construction and storage.

    @classmethod
    def from_graph_arrays(
        cls, arrays: GraphArrays, *, missing_labels: bool = False
    ) -> "PackedGraphs":
        """From the flat form in which every source in `grant_fast.data` returns its graphs.

        Args and errors: see `from_arrays`.
        """
        packed = pack_arrays(**vars(arrays), missing_labels=missing_labels)
        return cls(**packed._asdict())

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        edge_index: Any,
        batch: Any,
        y: Any = None,
        edge_weight: Any = None,
        num_graphs: int | None = None,
        *,
        edge_attr: Any = None,
        y_level: Level | None = None,
        missing_labels: bool = False,
        meta: dict[str, Any] | None = None,
    ) -> "PackedGraphs":
        """From tensors or NumPy arrays of all graphs together, numbered as PyG batches them.

        Args:
            x: [N, F] (or [N]); float64 becomes float32, integers the narrowest dtype that fits.
            edge_index: [2, E] integers, source → target, numbered through all N nodes.
            batch: [N] integers, the graph of every node, ascending.
            y: [G], [G, T], [N] or [N, T]; None where there is nothing to learn. Integers [G] or [N]
                are class numbers, int64 [rows]; all else, integers [rows, T] among it, becomes
                float32 [rows, T].
            edge_weight: [E], or None for 1 everywhere.
            num_graphs: G, needed where the last graphs are empty.
            edge_attr: [E] or [E, D], a row for each edge, or None.
            y_level: "graph" or "node"; needed only where G = N.
            missing_labels: NaN in `y` means "not measured" instead of being an error.
            meta: JSON-able facts that travel with the dataset and its file.

        Raises:
            InputError: wrong shapes or dtypes, NaN or infinities, indices out of range, an edge
                between two graphs; the message names the first culprit.
        """
        packed = pack_arrays(
            x,
            edge_index,
            batch,
            y,
            edge_weight,
            num_graphs,
            edge_attr=edge_attr,
            y_level=y_level,
            missing_labels=missing_labels,
        )
        packed = packed._replace(x=_apart(packed.x, x), y=_apart(packed.y, y))
        return cls(**packed._asdict(), meta=meta)

    @classmethod
    def from_data_list(
        cls,
        data_list: Sequence[Any],
        *,
        y_level: Level | None = None,
        missing_labels: bool = False,
    ) -> "PackedGraphs":
        """From PyG `Data` objects: anything with `x`, `edge_index` and, optionally, `y`,
        `edge_weight` and `edge_attr`.

        As in `from_arrays`, float64 becomes float32, and a float y of shape [1] a row of y [G, 1].
        `edge_type` and `train_mask` are not carried; a warning says so where there are several
        types, or labels outside of the mask. If no model reads `edge_attr`, set it to None first:
        it would be kept in memory and in files.
        """
        from ..data.pyg import from_data_list

        arrays = from_data_list(data_list, y_level, stacklevel=3)
        return cls.from_graph_arrays(arrays, missing_labels=missing_labels)

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, y_level: Level | None = None, missing_labels: bool = False
    ) -> "PackedGraphs":
        """From an OGB or PyG graph dataset: anything indexable that yields graphs.

        Warns like `from_data_list`; OGB's own `edge_feat` becomes `edge_attr`.
        """
        from ..data.pyg import from_dataset

        arrays = from_dataset(dataset, y_level, stacklevel=3)
        return cls.from_graph_arrays(arrays, missing_labels=missing_labels)

    @classmethod
    @usual_tensors
    def from_smiles(
        cls,
        smiles: Iterable[str],
        y: Any = None,
        *,
        edge_attr: bool = False,
        strict: bool = True,
        missing_labels: bool = False,
        workers: int | None = None,
        progress: bool = False,
    ) -> "PackedGraphs":
        """From SMILES, with OGB's nine categorical columns per atom (needs the `smiles` extra).

        Args:
            smiles: one string per molecule.
            y: [G], [G, T] targets, or None: integers [G] are class numbers, int64 [G]; all else
                becomes float32 [G, T].
            edge_attr: also keep OGB's three categorical columns for each bond, for your own models
                that read them (`FlexGCN` does not).
            strict: an unparsable SMILES is an error; otherwise it is left out with a warning, as
                None and NaN are, and `ids` holds the rows that remain.
            missing_labels: NaN in `y` means "not measured".
            workers: processes to parse with, one by default. More are spawned, so a script needs
                the usual `if __name__ == "__main__":` guard.
            progress: show a progress bar.

        Raises:
            InputError: an unparsable SMILES (by position and text) where `strict`; wrong targets;
                one string, a table or a set instead of a list.
            MissingExtraError: RDKit or OGB is not installed.
        """
        from ..data.smiles import as_list, read_molecules

        smiles, y = as_list(smiles), None if y is None else as_tensor("y", y)
        if not smiles:
            raise InputError("the list of SMILES is empty: give one or more")
        if y is not None and y.shape[:1] != (len(smiles),):
            rows = len(y) if y.dim() else "no"
            raise InputError(
                f"there are {len(smiles)} SMILES but {rows} rows of y: give one row for each"
            )
        if not strict:  # a table's gaps, as None and NaN, are left out like cells that are empty
            smiles = ["" if str(s) in ("None", "nan", "<NA>") else s for s in smiles]
        graphs, failures, _ = read_molecules(smiles, None, workers, progress, edge_attr)
        if failures:
            row, text = failures[0]
            first = f"smiles[{row}] {text!r} is not a valid SMILES"
            if strict or len(failures) == len(smiles):
                hint = "fix it, or pass strict=False" if strict else "none of them is"
                raise InputError(f"{first} ({len(failures)} in all): {hint}")
            warnings.warn(f"{len(failures)} left out; the first is {first}", stacklevel=3)
        bad = {row for row, _ in failures}
        keep = torch.tensor([row for row in range(len(smiles)) if row not in bad], dtype=torch.long)
        if y is not None:
            counts = graphs.num_graphs, graphs.num_nodes
            y = pack_targets(y[keep], *counts, "graph", missing_labels)[0]
        return cls(
            graphs.x,
            y,
            graphs.ptr,
            graphs.adj,
            graphs.adj_t,
            keep,
            meta={"encoder": "atom"},
            edge_attr=graphs.edge_attr,
        )

    @classmethod
    def concat(cls, parts: Iterable["PackedGraphs"]) -> "PackedGraphs":
        """One dataset from several, in order; ids are kept if all differ, else renumbered.

        `meta` is the first one's, except for a stored split, which refers to ids: it is kept only
        if the ids are, and if all parts have the same one.

        Raises:
            InputError: there are no parts, or they differ in the width or type of a tensor, in
                y_level, in their device, or in what they have.
        """
        parts = list(parts)
        _check_alike(parts)
        for part in parts:
            part.forget_written()
        first = parts[0]
        symmetric = all(p.is_symmetric for p in parts)
        ids, meta = torch.cat([p.ids for p in parts]), dict(first.meta)
        renumbered = ids.unique().numel() < ids.numel()
        if renumbered:
            ids = torch.arange(ids.numel(), device=ids.device)
        if renumbered or any(p.meta.get("split") != meta.get("split") for p in parts):
            meta.pop("split", None)
        out = cls(
            x=torch.cat([p.x for p in parts]),
            y=_joined([p.y for p in parts]),
            ptr=joined_ptr([p.ptr for p in parts]),
            ids=ids,
            adj=joined_csr([p.adj for p in parts]),
            adj_t=None if symmetric else joined_csr([p.adj_t or p.adj for p in parts]),
            y_level=first.y_level,
            meta=meta,
            edge_attr=_joined([p.edge_attr for p in parts]),
        )
        if any("scale" in vars(part) for part in parts):  # as in `subset`
            out.scale = torch.cat([part.scale for part in parts])
        return out

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one versioned file (safetensors: flat tensors and JSON, nothing executable).

        `load` takes it under any name; `load_dataset` and the command line recognise it by .gfast.

        Raises:
            InputError: the file cannot be written; a file that was there is left untouched.
        """
        storage.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = False) -> "PackedGraphs":
        """Memory-map a file that `save` wrote.

        Args:
            path: the file.
            verify: read all of it now and check it against its checksums, as `load_dataset` and the
                command line do.

        Raises:
            InputError: there is no such file, or it is truncated, of another kind or another
                version, or (with `verify`) differs from what was written.
        """
        return storage.load(cls, path, verify)


def _joined(tensors: list[Tensor | None]) -> Tensor | None:
    """One after another, if they are there: all of them or none."""
    there = [t for t in tensors if t is not None]
    return torch.cat(there) if there else None


def _apart(packed: Any, given: Any) -> Any:
    """What was packed, copied where it still is the caller's tensor, who may write into it."""
    if not isinstance(packed, Tensor) or not isinstance(given, Tensor):
        return packed
    same = packed.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    return packed.clone() if same else packed


def _check_alike(parts: Sequence[PackedGraphs]) -> None:
    """Refuse what cannot be joined (InputError)."""
    if not parts:
        raise InputError("there is nothing to concatenate: give at least one PackedGraphs")
    for part in parts:
        if not isinstance(part, PackedGraphs):
            kind = type(part).__name__
            raise InputError(f"concat joins PackedGraphs, not a {kind}: pack its graphs first")
    first = parts[0]
    if devices := {str(p.device) for p in parts if p.device != first.device}:
        raise InputError(
            f"parts are on {first.device} and on {', '.join(sorted(devices))}: move each with "
            f".to({str(first.device)!r})"
        )
    if any(p.num_features != first.num_features or p.y_level != first.y_level for p in parts):
        raise InputError("the parts differ in num_features or y_level: join those that agree")
    if any((p.y is None) != (first.y is None) for p in parts):
        raise InputError("some parts have targets and some have none: give all of them y, or none")
    if any((p.edge_attr is None) != (first.edge_attr is None) for p in parts):
        raise InputError("some parts have edge_attr and some have none: give it to all or none")
    for name in ("x", "y", "edge_attr"):
        tensors = [getattr(p, name) for p in parts]
        kinds = {(t.shape[1:], t.is_floating_point()) for t in tensors if t is not None}
        if len(kinds) > 1:
            raise InputError(f"the parts differ in the width or type of {name}: convert it")
