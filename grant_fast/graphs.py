"""A dataset of graphs as a few flat tensors."""

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import ops, storage
from .adjacency import inverse_sqrt
from .batch import GraphBatch, Positions, as_positions, repeat, take
from .caching import kept, kept_property
from .errors import InputError
from .packing import (
    PackedCSR,
    as_tensor,
    distinct_rows,
    joined_csr,
    joined_ptr,
    pack_arrays,
)
from .reference import expand_rows
from .tasks import Level
from .tiles import BitRows, bit_rows

if TYPE_CHECKING:
    from .data.arrays import GraphArrays


class PackedGraphs:
    """Many graphs in flat tensors, on one device; a batch of them is a list of positions.

    Build it with `from_arrays`, `from_data_list`, `from_smiles` or `from_dataset`, or `load` it.
    Treat it as immutable: what is derived from it is cached. PyTorch's `DataLoader` takes it as it
    is (`DataLoader(graphs, batch_sampler=sampler)`); PyG's collates PyG's own `Data` only.

    **Shapes** for G graphs of N nodes and E edges in all:
        x [N, F] float, or a narrow integer dtype where the columns are categories ·
        y [G, T] or [N, T] float with NaN for "not measured", [G] or [N] int64 classes, or None ·
        ptr [G + 1] int64, graph i owns nodes ptr[i] … ptr[i+1]-1 ·
        ids [G] int64, the identity of each graph, kept through indexing and reordering ·
        adj, adj_t: the edges by target and by source; adj_t is None where all is symmetric ·
        scale [N] = D^{-1/2}, D the weighted in-degree (0 where that is 0).

    `graphs[i]` is a `GraphBatch` of one graph; `graphs[slice | list | tensor | mask]` is a
    `PackedGraphs` with a copy of those graphs.
    """

    #: Derived features (`hops`) larger than this are computed a batch at a time instead of kept.
    cache_bytes = 4 << 30

    def __init__(
        self,
        x: Tensor,
        y: Tensor | None,
        ptr: Tensor,
        adj: PackedCSR,
        adj_t: PackedCSR | None,
        ids: Tensor | None = None,
        y_level: Level = "graph",
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.x, self.y, self.ptr, self.adj, self.adj_t = x, y, ptr, adj, adj_t
        self.ids = torch.arange(self.num_graphs, device=x.device) if ids is None else ids
        self.y_level: Level = y_level
        self.meta = dict(meta or {})
        self._cache: dict[tuple[Any, ...], Tensor] = {}

    @property
    def num_graphs(self) -> int:
        return self.ptr.shape[0] - 1

    @property
    def num_nodes(self) -> int:
        return self.x.shape[0]

    @property
    def num_edges(self) -> int:
        return self.adj.col.shape[0]

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def is_symmetric(self) -> bool:
        return self.adj_t is None

    @property
    def num_nodes_per_graph(self) -> Tensor:
        """[G] int64."""
        return self.ptr.diff()

    @kept_property
    def host_ptr(self) -> Tensor:
        """`ptr` on the CPU, so that the size of a batch is known without asking the device."""
        return self.ptr.cpu()

    @kept_property
    def max_nodes(self) -> int:
        """Nodes of the largest graph."""
        return int(self.host_ptr.diff().max()) if self.num_graphs else 0

    @kept_property
    def min_nodes(self) -> int:
        """Nodes of the smallest graph; 0 where one is empty."""
        return int(self.host_ptr.diff().min()) if self.num_graphs else 0

    @kept_property
    def host_edge_ptr(self) -> Tensor:
        """Where each graph's edges begin, [G + 1] int64, on the CPU."""
        return self.adj.rowptr[self.ptr].cpu()

    @kept_property
    def bits(self) -> BitRows | None:
        """The edges as bits, for the kernels; None where they are weighted."""
        return bit_rows(self.host_ptr, self.adj)

    @kept_property
    def scale(self) -> Tensor:
        """D^{-1/2} of every node, [N]: the normalised edge j → i weighs scale_i w scale_j."""
        dtype = self.x.dtype if self.x.is_floating_point() else torch.get_default_dtype()
        rowptr, _, weight = self.adj
        if weight is None:
            return inverse_sqrt(rowptr.diff().to(dtype))
        degree = torch.zeros(self.num_nodes, dtype=weight.dtype, device=self.device)
        return inverse_sqrt(degree.index_add_(0, expand_rows(rowptr, self.num_edges), weight))

    def __len__(self) -> int:
        return self.num_graphs

    def __repr__(self) -> str:
        y = "None" if self.y is None else f"{self.y_level} {list(self.y.shape)}"
        return (
            f"PackedGraphs(num_graphs={self.num_graphs}, num_nodes={self.num_nodes}, "
            f"num_edges={self.num_edges}, num_features={self.num_features}, y={y})"
        )

    def __getitem__(self, where: Positions) -> "GraphBatch | PackedGraphs":
        if isinstance(where, int):
            if not -self.num_graphs <= where < self.num_graphs:
                raise IndexError(f"there is no graph {where}: this dataset holds {self.num_graphs}")
            return self.batch([where])
        return self.subset(where)

    def __getitems__(self, where: list[int]) -> list[GraphBatch]:
        # torch's DataLoader fetches a batch sampler's lists through this, then collates: below.
        return [self.batch(where)]

    def batch(self, where: Positions) -> GraphBatch:
        """The graphs at these positions (0 … G-1), in this order, as one `GraphBatch`."""
        return GraphBatch(self, as_positions(where, self.num_graphs))

    def batches(self, batch_size: int, where: Positions = slice(None)) -> Iterable[GraphBatch]:
        """The graphs at `where`, `batch_size` at a time, in order."""
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}: it must be at least 1")
        positions = as_positions(where, self.num_graphs)
        if isinstance(positions, slice):
            for start in range(positions.start, positions.stop, batch_size):
                yield GraphBatch(self, slice(start, min(start + batch_size, positions.stop)))
        else:
            for chunk in positions.split(batch_size):
                yield GraphBatch(self, chunk)

    def subset(self, where: Positions) -> "PackedGraphs":
        """A `PackedGraphs` of the graphs at these positions, with their ids."""
        part = self.batch(where)
        return PackedGraphs(
            x=part.x,
            y=part.y,
            ptr=part.ptr,
            ids=part.ids,
            adj=part.local_csr(self.adj),
            adj_t=None if self.adj_t is None else part.local_csr(self.adj_t),
            y_level=self.y_level,
            meta=self.meta,
        )

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "PackedGraphs":
        """A copy on `device`, floating tensors as `dtype`; `self` where nothing changes."""
        unchanged = device is None or torch.device(device) == self.device
        if unchanged and dtype in (None, self.scale.dtype):
            return self

        def move(tensor: Tensor | None) -> Any:
            if tensor is None:
                return None
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        adj_t = None if self.adj_t is None else PackedCSR(*map(move, self.adj_t))
        moved = PackedGraphs(
            x=move(self.x),
            y=move(self.y),
            ptr=move(self.ptr),
            ids=move(self.ids),
            adj=PackedCSR(*map(move, self.adj)),
            adj_t=adj_t,
            y_level=self.y_level,
            meta=self.meta,
        )
        # What is known on the host stays known: reading it back would stop the device.
        moved.host_ptr, moved.host_edge_ptr = self.host_ptr, self.host_edge_ptr
        if dtype is not None and not self.x.is_floating_point():
            moved.scale = self.scale.to(device, dtype)
        return moved

    @kept_property
    def kinds(self) -> tuple[Tensor, Tensor] | None:
        """The distinct rows of a categorical X, [m, F], and the row of each node, [N] int32.

        A dataset of molecules has a few hundred kinds of atoms: whatever is computed of a row
        alone need be computed once a kind. None where X is not categorical, or has many kinds.
        """
        if self.x.is_floating_point() or not self.x.numel():
            return None
        rows, code = distinct_rows(self.x)
        return None if 4 * rows.shape[0] > self.num_nodes else (rows, code)

    # What never changes during training is computed once (features and graphs are data).

    @kept
    @torch.no_grad()
    def hops(self, order: int, normalize: bool) -> Tensor | None:
        """[X, ÂX, …, Â^{κ-1}X] for every node, [N, κF]: a first layer is then one product.

        None where X is categorical, or where the result would exceed `cache_bytes`.
        """
        width = order * self.num_features
        if not self.x.is_floating_point():
            return None
        if self.num_nodes * width * self.x.element_size() > self.cache_bytes:
            return None
        key = ("hops", normalize)
        if key not in self._cache or self._cache[key].shape[1] < width:
            out = self.x.new_empty(self.num_nodes, width)
            for part in self._parts():
                z = part.x
                for k, column in enumerate(out[part.nodes].split(self.num_features, dim=1)):
                    z = ops.spmm(z, part.adjacency(normalize)) if k else z
                    column.copy_(z)
            self._cache[key] = out
        return self._cache[key][:, :width]

    @kept
    @torch.no_grad()
    def edge_values(self, normalize: bool, transposed: bool) -> Tensor | None:
        """What each stored edge weighs in Â (or A), [E]; None where that is 1 everywhere."""
        csr = self.adj_t if transposed and self.adj_t is not None else self.adj
        if not normalize:
            return csr.weight
        key = ("edges", transposed and self.adj_t is not None)
        if key not in self._cache:
            out = self.scale.new_empty(self.num_edges)
            for part in self._parts():
                rowptr, col, weight = part.local_csr(csr)
                scale = take(self.scale, part.nodes)
                first = repeat(part.ptr[:-1], part.edge_counts, part.num_edges, self.device)
                row_scale = repeat(scale, rowptr.diff(), part.num_edges, self.device)
                value = row_scale.mul_(take(scale, col + first))
                out[part.edges] = value if weight is None else value.mul_(weight)
            self._cache[key] = out
        return self._cache[key]

    @kept
    @torch.no_grad()
    def edge_rows(self, transposed: bool) -> Tensor | None:
        """The row, within its graph, of each stored edge, [E] int32; None above 8 edges a node."""
        if self.num_edges > 8 * self.num_nodes:
            return None
        csr = self.adj_t if transposed and self.adj_t is not None else self.adj
        key = ("rows", csr is self.adj)
        if key not in self._cache:
            first = repeat(self.ptr[:-1], self.num_nodes_per_graph, self.num_nodes, self.device)
            row = torch.arange(self.num_nodes, device=self.device).sub_(first).int()
            self._cache[key] = repeat(row, csr.rowptr.diff(), self.num_edges, self.device)
        return self._cache[key]

    @kept
    @torch.no_grad()
    def pool_weights(self, order: int, normalize: bool, mean: bool) -> Tensor:
        """p_k = ρÂ^k, [κ, N]: pooling a linear layer is a sum with these weights."""
        key = ("pool", normalize, mean)
        if key not in self._cache or self._cache[key].shape[0] < order:
            out = self.scale.new_empty(order, self.num_nodes)
            for part in self._parts():
                p = part.pooling(mean).transposed[2][:, None]  # 1 or 1/n_i
                backwards = part.adjacency(normalize).transpose()
                for k in range(order):
                    p = ops.spmm(p, backwards) if k else p
                    out[k, part.nodes] = p[:, 0]
            self._cache[key] = out
        return self._cache[key][:order]

    def _parts(self) -> Iterable[GraphBatch]:
        """The whole dataset in pieces of a bounded number of edges, to bound temporary memory."""
        mean_edges = max(1, (self.num_edges + self.num_nodes) // max(1, self.num_graphs))
        return self.batches(max(1, (1 << 22) // mean_edges))

    # Construction and storage.

    @classmethod
    def from_graph_arrays(
        cls,
        arrays: "GraphArrays",
        *,
        missing_labels: bool = False,
        ids: Tensor | None = None,
        meta: dict[str, Any] | None = None,
    ) -> "PackedGraphs":
        """From the flat form in which every source in `grant_fast.data` hands over its graphs.

        Args and errors: see `from_arrays`; `ids` [G] default to 0 … G-1.
        """
        packed = pack_arrays(
            arrays.x,
            arrays.edge_index,
            arrays.batch,
            arrays.y,
            arrays.edge_weight,
            arrays.num_graphs,
            y_level=arrays.y_level,
            missing_labels=missing_labels,
        )
        return cls(**packed._asdict(), ids=ids, meta=meta)

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
        y_level: Level | None = None,
        missing_labels: bool = False,
        meta: dict[str, Any] | None = None,
    ) -> "PackedGraphs":
        """From tensors or NumPy arrays of all graphs together, numbered as PyG batches them.

        Args:
            x: [N, F] (or [N]); float64 becomes float32, integers the narrowest dtype that fits.
            edge_index: [2, E] integers, source → target, numbered through all N nodes.
            batch: [N] integers, the graph of every node, ascending.
            y: [G], [G, T], [N] or [N, T]; None where there is nothing to learn. Floats and bools
                become float32 [rows, T]; one column of integers becomes int64 [rows] (classes).
            edge_weight: [E], or None for 1 everywhere.
            num_graphs: G, needed where the last graphs are empty.
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
            y_level=y_level,
            missing_labels=missing_labels,
        )
        return cls(**packed._asdict(), meta=meta)

    @classmethod
    def from_data_list(
        cls,
        data_list: Sequence[Any],
        *,
        y_level: Level | None = None,
        missing_labels: bool = False,
    ) -> "PackedGraphs":
        """From PyG `Data` objects: anything with `x`, `edge_index`, maybe `y` and `edge_weight`."""
        from .data.pyg import from_data_list

        arrays = from_data_list(data_list, y_level)
        return cls.from_graph_arrays(arrays, missing_labels=missing_labels)

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, y_level: Level | None = None, missing_labels: bool = False
    ) -> "PackedGraphs":
        """From an OGB or PyG graph dataset: anything indexable that yields graphs."""
        from .data.pyg import from_dataset

        arrays = from_dataset(dataset, y_level)
        return cls.from_graph_arrays(arrays, missing_labels=missing_labels)

    @classmethod
    def from_smiles(
        cls,
        smiles: Sequence[str],
        y: Any = None,
        *,
        strict: bool = True,
        missing_labels: bool = False,
        workers: int | None = None,
        progress: bool = False,
    ) -> "PackedGraphs":
        """From SMILES, with OGB's nine categorical columns an atom (needs the `smiles` extra).

        Args:
            smiles: one string a molecule.
            y: [G], [G, T] targets, or None.
            strict: an unparsable SMILES is an error; otherwise it is left out with a warning, and
                `ids` holds the rows that remain.
            missing_labels: NaN in `y` means "not measured".
            workers: processes to parse with, one by default. More are spawned, so a script needs
                the usual `if __name__ == "__main__":` guard.
            progress: show a progress bar.

        Raises:
            InputError: an unparsable SMILES (by row and text) where `strict`; wrong targets.
            MissingExtraError: RDKit or OGB is not installed.
        """
        from .data.smiles import featurize

        if y is not None and len(y) != len(smiles):
            raise InputError(f"there are {len(smiles)} SMILES but {len(y)} rows of y")
        arrays, failures = featurize(smiles, workers=workers, progress=progress)
        if failures:
            row, text = failures[0]
            first = f"row {row}: {text!r} is not a valid SMILES"
            if strict or len(failures) == len(smiles):
                hint = "fix it, or pass strict=False" if strict else "none of them is"
                raise InputError(f"{first} ({len(failures)} in all): {hint}")
            warnings.warn(f"{len(failures)} left out; the first is {first}", stacklevel=2)
        bad = {row for row, _ in failures}
        keep = torch.tensor([row for row in range(len(smiles)) if row not in bad], dtype=torch.long)
        if y is not None:
            arrays = replace(arrays, y=as_tensor("y", y)[keep], y_level="graph")
        return cls.from_graph_arrays(
            arrays, missing_labels=missing_labels, ids=keep, meta={"encoder": "atom"}
        )

    @classmethod
    def concat(cls, parts: Sequence["PackedGraphs"]) -> "PackedGraphs":
        """One dataset from several, in order; ids are kept where they differ, else renumbered."""
        if not parts:
            raise InputError("there is nothing to concatenate: give at least one PackedGraphs")
        first = parts[0]
        if any(p.num_features != first.num_features or p.y_level != first.y_level for p in parts):
            raise InputError("the parts differ in num_features or y_level")
        if any((p.y is None) != (first.y is None) for p in parts):
            raise InputError("some parts have targets and some have none")
        symmetric = all(p.is_symmetric for p in parts)
        ids = torch.cat([p.ids for p in parts])
        if ids.unique().numel() < ids.numel():
            ids = torch.arange(ids.numel(), device=ids.device)
        return cls(
            x=torch.cat([p.x for p in parts]),
            y=None if first.y is None else torch.cat([p.y for p in parts if p.y is not None]),
            ptr=joined_ptr([p.ptr for p in parts]),
            ids=ids,
            adj=joined_csr([p.adj for p in parts]),
            adj_t=None if symmetric else joined_csr([p.adj_t or p.adj for p in parts]),
            y_level=first.y_level,
            meta=first.meta,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one versioned file (safetensors: flat tensors and JSON, nothing executable).

        Raises:
            InputError: the file cannot be written; a file that was there is left untouched.
        """
        storage.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PackedGraphs":
        """Memory-map a file that `save` wrote.

        Raises:
            InputError: no such file, or one that is truncated, foreign, or of another version.
        """
        return storage.load(cls, path)
