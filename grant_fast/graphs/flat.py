"""Graphs in flat tensors, and what is computed of them once and kept."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .. import native, ops
from ..adjacency import inverse_sqrt
from ..batches import GraphBatch
from ..batches.layout import DatasetEdges, DatasetSide, PackedCSR
from ..batches.tiles import BitRows, bit_rows
from ..caching import kept, kept_property, writes
from ..devices import indexed, memory_of
from ..errors import InputError
from ..indexing import (
    Positions,
    as_positions,
    neighbours,
    repeat,
    sizes_to_ptr,
    take,
)
from ..reference import expand_rows
from ..tasks import NOT_MEASURED, Level
from .kinds import find_kinds

if TYPE_CHECKING:
    from typing_extensions import Self

#: Of classes, while they live: after how many writes what was their range.
_class_ranges: WeakIdKeyDictionary = WeakIdKeyDictionary()


class FlatGraphs:
    """What `PackedGraphs` holds and derives; see there for the fields and their shapes."""

    #: Derived features (`hops`) larger than this are computed a batch at a time instead of kept.
    cache_bytes = 4 << 30
    #: Whether edges are put into groups, which hops read faster.
    groups = True
    #: How often X had been written to when `kinds` were computed, and the edges when they were set.
    _kinds_of: int | None = None
    _edges_of: tuple[int, ...] | None = None

    def __init__(
        self,
        x: Tensor,
        y: Tensor | None = None,
        ptr: Tensor | None = None,
        adj: PackedCSR | None = None,
        adj_t: PackedCSR | None = None,
        ids: Tensor | None = None,
        y_level: Level = "graph",
        meta: dict[str, Any] | None = None,
        edge_attr: Tensor | None = None,
    ) -> None:
        if ptr is None or adj is None:
            raise InputError(
                "PackedGraphs takes flat tensors here: make one with PackedGraphs.from_dataset, "
                "from_data_list, from_smiles or from_arrays, or load one"
            )
        self.x, self.y, self.ptr, self.adj, self.adj_t = x, y, ptr, adj, adj_t
        self.edge_attr = edge_attr
        self.ids = torch.arange(self.num_graphs, device=x.device) if ids is None else ids
        self.y_level: Level = y_level
        self.meta = dict(meta or {})
        self._cache: dict[Any, Any] = {}
        self._edges_of = self._edge_writes()

    def __copy__(self) -> "Self":
        out = object.__new__(type(self))
        vars(out).update(vars(self))
        return out

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle or a deep copy takes over, without what is kept of X: a copied X counts its
        writes from elsewhere."""
        self.forget_written()
        own = vars(self) | {"_cache": {k: v for k, v in self._cache.items() if k[0] != "hops"}}
        counted = ("kinds", "_kinds_of", "_edges_of")
        return {name: value for name, value in own.items() if name not in counted}

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
    def num_node_features(self) -> int:
        """PyG's other name for `num_features`."""
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
    def kernel_ptr(self) -> Tensor:
        """`ptr` with one empty graph appended: what unused entries of a `PaddedBatch` point at."""
        return torch.cat([self.ptr, self.ptr[-1:]])

    @kept_property
    def max_nodes(self) -> int:
        """Nodes of the largest graph."""
        return int(self.host_ptr.diff().max()) if self.num_graphs else 0

    @property
    def class_range(self) -> tuple[int, int]:
        """The smallest and the largest class in y, of those that were measured; found anew where y
        was set or written to since."""
        y = self.y
        assert y is not None and not y.is_floating_point()
        seen, found = _class_ranges.get(y, (-1, (0, 0)))
        if seen != writes(y):
            known = y[y != NOT_MEASURED]
            low, high = torch.aminmax(known) if known.numel() else (0, 0)
            found = int(low), int(high)
            _class_ranges[y] = writes(y), found
        return found

    @kept_property
    def min_nodes(self) -> int:
        """Nodes of the smallest graph; 0 where one is empty."""
        return int(self.host_ptr.diff().min()) if self.num_graphs else 0

    @kept_property
    def host_edge_ptr(self) -> Tensor:
        """Where each graph's edges begin, [G + 1] int64, on the CPU."""
        return self.adj.rowptr[self.ptr].cpu()

    def cut(
        self,
        most: int,
        positions: Tensor | None = None,
        *,
        node: int = 1,
        edge: int = 1,
        longest: int | None = None,
    ) -> list[slice]:
        """The graphs in runs that cost `most` at the most, or of one graph that costs more.

        Args:
            positions: [n] int64 on the CPU: cut these graphs in this order; all of them if None.
            node, edge: what a graph costs for each of them.
            longest: how many graphs a run may have.

        Returns:
            Slices of the graphs, or of `positions`.
        """
        ptrs = [self.host_ptr, self.host_edge_ptr]
        if positions is not None:
            ptrs = [sizes_to_ptr(take(ptr.diff(), positions)) for ptr in ptrs]
        nodes, edges = (ptr.numpy() for ptr in ptrs)

        def until(at: int) -> int:
            return node * int(nodes[at]) + edge * int(edges[at])

        return neighbours(until, len(nodes) - 1, most, longest)

    @kept_property
    def bits(self) -> BitRows | None:
        """The edges as bits, for the Triton kernels; None where `bit_rows` gives none."""
        return bit_rows(self.host_ptr, self.adj)

    @kept_property
    def scale(self) -> Tensor:
        """D^{-1/2} of every node, [N]: the normalised edge j → i weighs scale_i w scale_j."""
        if self.adj.weight is not None:
            return self._scale_in(self.adj.weight.dtype)
        is_float = self.x.is_floating_point()
        return self._scale_in(self.x.dtype if is_float else torch.get_default_dtype())

    def _scale_in(self, dtype: torch.dtype) -> Tensor:
        """`scale`, of degrees that are summed in float32 at least."""
        wide = torch.promote_types(dtype, torch.float32)
        rowptr, _, weight = self.adj
        if weight is None:
            return inverse_sqrt(rowptr.diff().to(wide)).to(dtype)
        degree = torch.zeros(self.num_nodes, dtype=wide, device=self.device)
        degree.index_add_(0, expand_rows(rowptr, self.num_edges), weight.to(wide))
        return inverse_sqrt(degree).to(dtype)

    def batch(self, where: Positions) -> GraphBatch:
        """The graphs at these positions (0 … G-1), in this order, as one `GraphBatch`."""
        return GraphBatch(self, as_positions(where, self.num_graphs))

    def subset(self, where: Positions) -> "Self":
        """A `PackedGraphs` of the graphs at these positions, with their ids."""
        self.forget_written()  # what is kept of them goes along
        part = self.batch(where)
        out = type(self)(
            x=take(self.x, part.nodes),
            y=None if self.y is None else part.of_targets(self.y),
            ptr=part.ptr,
            ids=part.ids,
            adj=part.local_csr(self.adj),
            adj_t=None if self.adj_t is None else part.local_csr(self.adj_t),
            y_level=self.y_level,
            meta=self.meta,
            edge_attr=None if self.edge_attr is None else take(self.edge_attr, part.edges),
        )
        if "scale" in vars(self):  # whose dtype nothing else says where X is categorical
            out.scale = take(self.scale, part.nodes)
        return out

    def to(
        self,
        device: torch.device | str | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
    ) -> "Self":
        """A copy on `device`, floating tensors as `dtype`; `self` where nothing changes.

        `to(dtype)` is understood, as of PyTorch's modules. Targets stay float32 where `dtype` is a
        shorter one, as losses and metrics take them.

        Raises:
            InputError: `dtype` is not of floating point.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise InputError(f"dtype is {dtype}: give torch.float32, float64, float16 or bfloat16")
        unchanged = device is None or indexed(device) == self.device
        if unchanged and (dtype is None or self._is_in(dtype)):
            return self

        def move(tensor: Tensor | None) -> Any:
            if tensor is None:
                return None
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        adj_t = None if self.adj_t is None else PackedCSR(*map(move, self.adj_t))
        y = None if self.y is None else self.y.to(device)
        targets = None if dtype is None else torch.promote_types(dtype, torch.float32)
        moved = type(self)(
            x=move(self.x),
            y=y if y is None or not y.is_floating_point() else y.to(targets),
            ptr=move(self.ptr),
            ids=move(self.ids),
            adj=PackedCSR(*map(move, self.adj)),
            adj_t=adj_t,
            y_level=self.y_level,
            meta=self.meta,
            edge_attr=move(self.edge_attr),
        )
        # What is known on the host stays known: reading it back would stop the device.
        moved.host_ptr, moved.host_edge_ptr = self.host_ptr, self.host_edge_ptr
        if dtype is None and "scale" in vars(self):
            moved.scale = self.scale.to(device)
        elif dtype is not None and not self.x.is_floating_point():
            moved.scale = moved._scale_in(dtype)
        return moved

    def _is_in(self, dtype: torch.dtype) -> bool:
        """Whether `to(dtype)` would change nothing."""
        inputs = [(each, dtype) for each in (self.x, self.edge_attr, self.adj.weight, self.scale)]
        inputs.append((self.y, torch.promote_types(dtype, torch.float32)))
        return all(
            tensor is None or not tensor.is_floating_point() or tensor.dtype == wanted
            for tensor, wanted in inputs
        )

    @kept_property
    def kinds(self) -> tuple[Tensor, Tensor] | None:
        """The distinct rows of X, [m, F], and the row of each node, [N] int32.

        A dataset of molecules has a few hundred kinds of atoms: whatever is computed of a row
        alone need be computed once a kind. None where X is learned, or has many kinds.
        """
        if self.x.requires_grad or not self.x.numel():
            return None
        self._kinds_of = writes(self.x)
        return find_kinds(self.x)

    def forget_written(self) -> None:
        """Let `kinds` be computed anew if X was written to since; `hops` sees to itself.

        Raises:
            InputError: the edges were written to, which they are not packed for.
        """
        if self._kinds_of not in (None, writes(self.x)):
            vars(self).pop("kinds", None)
            self._kinds_of = None
        if self._edges_of is None:
            self._edges_of = self._edge_writes()
        elif self._edges_of != self._edge_writes():
            raise InputError(
                "the packed edges or their weights were written to, which would count only in "
                "part: pack the graphs again, for example with PackedGraphs.from_arrays"
            )

    def _edge_writes(self) -> tuple[int, ...]:
        """How often what holds the edges was written to."""
        return tuple(writes(t) for t in (*self.adj, *(self.adj_t or ())) if t is not None)

    # What never changes during training is computed once (features and graphs are data).

    @kept
    @torch.no_grad()
    def hops(self, order: int, normalize: bool) -> Tensor | None:
        """[X, ÂX, …, Â^{κ-1}X] for every node, [N, κF]: a first layer is then one product.

        None where X is categorical or learned, or where the result would exceed `cache_bytes`, or
        an eighth of the device's memory.
        Computed anew where X was written to since, as features that were learned.
        """
        width = order * self.num_features
        if not self.x.is_floating_point() or self.x.requires_grad:
            return None
        most = min(self.cache_bytes, memory_of(self.device) // 8)
        if self.num_nodes * width * self.x.element_size() > most:
            return None
        key, now = ("hops", normalize), writes(self.x)
        out, of = self._cache.get(key, (None, now))  # another thread may put in what it asked for
        if out is None or out.shape[1] < width or of != now:
            out = self.x.new_empty(self.num_nodes, width)
            for part in self._parts():  # by "torch": models of any backend read what is kept
                z = part.x
                for k, column in enumerate(out[part.nodes].split(self.num_features, dim=1)):
                    z = ops.spmm(z, part.adjacency(normalize), "torch") if k else z
                    column.copy_(z)
            self._cache[key] = out, now
        return out[:, :width]

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
    def edges(self, normalize: bool) -> DatasetEdges:
        """All edges as the CPU kernels read them: without `groups` where edges are weighted."""
        if "groups" not in self._cache:
            csrs = [self.adj, *([] if self.adj_t is None else [self.adj_t])]
            grouped = self.groups and self.adj.weight is None
            sides = [
                native.grouped(csr, self.ptr) if grouped else DatasetSide(*csr) for csr in csrs
            ]
            self._cache["groups"] = sides[0], sides[-1]
        return DatasetEdges(self.scale if normalize else None, self._cache["groups"])

    @kept
    @torch.no_grad()
    def pool_weights(self, order: int, normalize: bool, mean: bool) -> Tensor:
        """p_k = ρÂ^k, [κ, N]: pooling a linear layer is a sum with these weights.

        Those of each order are kept, since a recorded CUDA graph may read them.
        """
        key = ("pool", order, normalize, mean)
        out = self._cache.get(key)
        if out is None:
            out = self.scale.new_empty(order, self.num_nodes)
            whole = self.batch(slice(None)).adjacency(normalize)
            if native.takes(out, whole):
                native.pool_weights(whole, mean, out)
            else:
                self._sum_pool_weights(out, normalize, mean)
            self._cache[key] = out
        return out

    def _sum_pool_weights(self, out: Tensor, normalize: bool, mean: bool) -> None:
        for part in self._parts():
            p = part.pooling(mean).transposed[2][:, None]  # 1 or 1/n_i
            backwards = part.adjacency(normalize).transpose()
            for k, row in enumerate(out):
                p = ops.spmm(p, backwards, "torch") if k else p
                row[part.nodes] = p[:, 0]

    def _parts(self) -> Iterable[GraphBatch]:
        """The whole dataset in pieces of a bounded size, to bound temporary memory."""
        return map(self.batch, self.cut(1 << 22))
