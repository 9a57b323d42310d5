"""A batch is a list of graph positions; what a model needs of it is gathered when asked for."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..adjacency import Adjacency, CSRTensors, index_dtype, pooling_matrix
from ..caching import kept, kept_property
from ..devices import indexed
from ..errors import InputError
from ..indexing import spans, take
from ..reference import aligned, expand_rows
from .edges import BatchAdjacency
from .foreign import no_such
from .places import DevicePlaces, Places, Told, in_dataset
from .read_only import NAMES, ReadOnly
from .tiles import Segments, TileRows, Tiles, segment_batch, tile_batch

if TYPE_CHECKING:
    from ..graphs.flat import FlatGraphs
    from .layout import PackedCSR


class GraphBatch(ReadOnly):
    """Some graphs of a `PackedGraphs`, in a given order, as one big disconnected graph.

    Nothing is copied until it is read, and then with index arithmetic over whole tensors: no Python
    loop over graphs, and no host synchronisation where the positions are on the CPU. Attribute
    names are PyG's, so a PyG model takes `b.x, b.edge_index, b.batch` as they are; but y is [B, 1]
    where PyG's is [B] floats. They are read-only: a `FlexGCN` reads the dataset itself, and would
    not see a change to the batch. Under `torch.compile`, a `FlexGCN` that is given a `GraphBatch`
    runs uncompiled, because each batch has its own sizes.

    **Shapes** for B graphs of n nodes and e edges in all:
        x [n, F] float, or int64 where the dataset holds integers · y [B, T] or
        [n, T], or classes int64 [B] or [n] ·
        ptr [B + 1] · batch [n] · edge_index [2, e] · ids [B] ·
        edge_weight [e] and edge_attr [e, D] (or [e], int64 where the dataset holds integers), or
        None where the dataset has none
    """

    #: How many of the rows are nodes, [1] int64 on the device; None: all are. See `PaddedBatch`.
    node_count: Tensor | None = None
    #: X as a model was given it, where that is not a dataset's. See `graphs.on_the_fly`.
    _given: Tensor | None = None
    #: The same graphs without that X, which whoever keeps the edges would keep with them.
    _bare: "GraphBatch | None" = None

    def __init__(self, graphs: "FlatGraphs", positions: Tensor | slice) -> None:
        self.graphs = graphs
        self._positions = positions

    def __contains__(self, name: object) -> bool:
        """Whether the graphs have it, as PyG's `"edge_weight" in batch`."""
        return name in NAMES and getattr(self, str(name)) is not None

    def __getitem__(self, name: str) -> Any:
        """PyG's `batch["x"]`, which is `batch.x`."""
        if not isinstance(name, str):
            raise InputError(
                f"a GraphBatch has names, as batch['x'], and no {name!r}: single graphs are in its "
                "dataset, graphs[batch.positions]"
            )
        return getattr(self, name)

    if not TYPE_CHECKING:  # to whom every name would be one
        __getattr__ = no_such(of_batch=True)

    def __len__(self) -> int:
        return self.num_graphs

    def __repr__(self) -> str:
        return f"GraphBatch(num_graphs={self.num_graphs}, num_nodes={self.num_nodes})"

    @kept_property
    def num_graphs(self) -> int:
        if isinstance(self._positions, slice):
            return self._positions.stop - self._positions.start
        return self._positions.shape[0]

    @property
    def batch_size(self) -> int:
        """PyG's other name for `num_graphs`."""
        return self.num_graphs

    @property
    def num_features(self) -> int:
        return self.graphs.num_features

    @property
    def num_node_features(self) -> int:
        """PyG's other name for `num_features`."""
        return self.graphs.num_features

    @property
    def device(self) -> torch.device:
        return self.graphs.device

    @kept_property
    def device_positions(self) -> Tensor | slice:
        """The positions on the graphs' device, [B], or a slice where they are neighbours."""
        where = self._positions
        here = isinstance(where, slice) or self.device.type == "cpu"
        return where if here else self._told.positions

    @kept_property
    def ids(self) -> Tensor:
        """Which graphs these are, [B] int64: an identity that no reordering changes."""
        ids = take(self.graphs.ids, self.device_positions)
        return self._own(ids, ids.dtype)

    @kept_property
    def _node_places(self) -> Places:
        return Places.of(self.graphs.host_ptr, self._positions, self.graphs.num_nodes)

    @kept_property
    def _edge_places(self) -> Places:
        return Places.of(self.graphs.host_edge_ptr, self._positions, self.graphs.num_edges)

    @kept_property
    def _told(self) -> Told:
        return Told.of(self._node_places, self._edge_places, self.positions, self.device)

    @property
    def _placed_nodes(self) -> Places | DevicePlaces:
        """Where the nodes lie, in tensors on the graphs' device."""
        return self._node_places if self.device.type == "cpu" else self._told.nodes

    @property
    def _placed_edges(self) -> Places | DevicePlaces:
        """Where the edges lie, the same."""
        return self._edge_places if self.device.type == "cpu" else self._told.edges

    @property
    def host_rows(self) -> tuple[Tensor, Tensor]:
        """First row [B + 1] and first node in the dataset [B] of each graph, int64 on the CPU."""
        return self._node_places.ptr, self._node_places.first

    @kept_property
    def _parts(self) -> dict[int, Tensor]:
        return {}

    @kept
    def parts(self, count: int) -> Tensor:
        """Where the graphs of each of `count` parts of about as many nodes begin and end,
        [count + 1] int64, on the CPU."""
        if count == 1:  # in each step on a small batch, where a search would be felt
            return torch.tensor([0, self.num_graphs], device="cpu")
        if count not in self._parts:
            rows = np.arange(count + 1, dtype=np.int64) * self.num_nodes // count
            part = np.searchsorted(self._node_places.ptr.numpy(), rows)
            part[-1] = self.num_graphs  # empty ones at the end, too
            self._parts[count] = torch.from_numpy(part)
        return self._parts[count]

    @kept_property
    def num_nodes(self) -> int:
        return self._node_places.total

    @kept_property
    def num_edges(self) -> int:
        return self._edge_places.total

    @kept_property
    def ptr(self) -> Tensor:
        """Where each graph's nodes begin, [B + 1] int64; not what the kernels of the CPU read."""
        return self._placed_nodes.ptr.to(torch.int64, copy=True)

    @kept_property
    def sizes(self) -> Tensor:
        """Nodes of each graph, [B] int64."""
        return self._placed_nodes.ptr.diff().long()

    @property
    def edge_counts(self) -> Tensor:
        """Edges of each graph, [B] int64, on the CPU."""
        return self._edge_places.sizes.clone()

    @kept_property
    def nodes(self) -> Tensor | slice:
        """The rows of `graphs.x` that these graphs own, in batch order."""
        if isinstance(self._positions, slice):
            first = int(self.graphs.host_ptr[self._positions.start])
            return slice(first, first + self.num_nodes)
        return in_dataset(self._placed_nodes)

    def of_nodes(self, values: Tensor, otherwise: int) -> Tensor:
        """What `values` [N] holds for each row, [n]; `otherwise` for one that is no node's."""
        return take(values, self.nodes)

    @kept_property
    def edges(self) -> Tensor | slice:
        """The entries of `graphs.adj.col` that these graphs own, in batch order."""
        if isinstance(self._positions, slice):
            first = int(self.graphs.host_edge_ptr[self._positions.start])
            return slice(first, first + self.num_edges)
        return in_dataset(self._placed_edges)

    @property
    def x(self) -> Tensor:
        if self._given is not None:
            return self._given
        return self._copy_of("x", self.graphs.x, lambda x: self._own_features(take(x, self.nodes)))

    def _own_features(self, rows: Tensor) -> Tensor:
        # Embeddings want int64 for their indices.
        return self._own(rows, rows.dtype if rows.is_floating_point() else torch.int64)

    def _own(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """A copy where they are a view of the dataset's, which nobody shall write into: a model
        that normalises x in place, or who fills in the targets that are missing."""
        return rows.to(dtype, copy=isinstance(self._positions, slice))

    @property
    def y(self) -> Tensor | None:
        if self.graphs.y is None:
            return None
        return self._copy_of("y", self.graphs.y, lambda y: self._own(self.of_targets(y), y.dtype))

    def of_targets(self, y: Tensor) -> Tensor:
        """The rows of the dataset's targets that are these graphs'; a view of neighbours'."""
        return take(y, self.device_positions if self.graphs.y_level == "graph" else self.nodes)

    @kept_property
    def batch(self) -> Tensor:
        """The graph, within this batch, of every node, [n] int64."""
        return self._placed_nodes.graph.long()

    def local_csr(self, csr: "PackedCSR") -> "PackedCSR":
        """One direction of these graphs' edges, as `PackedGraphs` holds it."""
        weight = None if csr.weight is None else take(csr.weight, self.edges)
        return type(csr)(self._rowptr(csr).long(), take(csr.col, self.edges), weight)

    def _rowptr(self, csr: "PackedCSR") -> Tensor:
        """Where the edges of each node begin in the batch, [n + 1]."""
        if isinstance(self.nodes, slice):
            rowptr = csr.rowptr[self.nodes.start : self.nodes.stop + 1]
            return rowptr - rowptr[:1]
        ends = self._placed_nodes.each(self._placed_edges.shift)
        ends += take(csr.rowptr[1:], self.nodes)
        return torch.cat([self._placed_edges.ptr[:1].to(ends.dtype), ends])

    @kept_property
    def _column_shift(self) -> Tensor:
        small = index_dtype(self.num_nodes, self.num_edges)
        return self._placed_edges.each(self._placed_nodes.ptr[:-1].to(small))

    @kept_property
    def _csrs(self) -> dict[tuple[bool, bool], CSRTensors]:
        return {}

    @kept
    def csr(self, transposed: bool, normalize: bool) -> CSRTensors:
        """A or Â of the batch, or its transpose: row pointers [n + 1], columns and values [e].

        Only a backward pass reads the transpose; scoring need not gather it.
        """
        key = transposed and not self.graphs.is_symmetric, normalize
        if key not in self._csrs:
            self._csrs[key] = self._gather_csr(*key)
        return self._csrs[key]

    def _gather_csr(self, transposed: bool, normalize: bool) -> CSRTensors:
        graphs = self.graphs
        csr = graphs.adj_t if transposed and graphs.adj_t is not None else graphs.adj
        values = graphs.edge_values(normalize, transposed)
        if values is None:
            value = graphs.scale.new_ones(self.num_edges)
        else:
            value = aligned(take(values, self.edges))
        return *self._gather_edges(csr), value

    def _gather_edges(self, csr: "PackedCSR") -> tuple[Tensor, Tensor]:
        """Row pointers [n + 1] and columns [e] of `csr` in the batch."""
        shift = self._column_shift
        return self._rowptr(csr).to(shift.dtype), take(csr.col, self.edges) + shift

    def adjacency(self, normalize: bool) -> BatchAdjacency:
        """The propagation matrix of the batch, [n, n]: A, or Â = D^{-1/2} A D^{-1/2}."""
        return BatchAdjacency(self if self._bare is None else self._bare, normalize)

    @kept_property
    def tiles(self) -> Tiles | None:
        """How the kernels take this batch; None where there are no bits (`bit_rows`)."""
        bits = self.graphs.bits
        if bits is None or self.num_nodes >= 1 << 29:  # tiles' rows are counted in int32
            return None
        sizes, first_rows = self._node_places.sizes, self._node_places.ptr[:-1]
        return tile_batch(sizes, self.positions, first_rows, bits.fits, self.device)

    @kept_property
    def tile_rows(self) -> TileRows | None:
        """What the kernels read of each row of those tiles; None as above."""
        from ..kernels.tables import lay_out

        bits, tiles = self.graphs.bits, self.tiles
        if bits is None or tiles is None:
            return None
        return lay_out(tiles, self.graphs.ptr, bits.bits, self.graphs.scale)

    @kept_property
    def segments(self) -> Segments:
        """How the readout's kernels take this batch."""
        return segment_batch(self._node_places.sizes, self._node_places.first, self.device)

    @kept_property
    def positions(self) -> Tensor:
        """Which graphs of the dataset these are, [B] int64, on the CPU."""
        if isinstance(self._positions, slice):
            return torch.arange(self._positions.start, self._positions.stop, device="cpu")
        return self._positions.clone()

    @kept_property
    def rest(self) -> "tuple[GraphBatch, Tensor] | None":
        """The graphs that the kernels leave to CSR, and their rows of this batch; None: none."""
        if self.tiles is None or self.tiles.rest is None:
            return None
        where = self.tiles.rest
        others = GraphBatch(self.graphs, take(self.positions, where))
        places = others._node_places._replace(first=take(self._node_places.ptr, where))
        return others, spans(*places[:3], others.num_nodes, torch.int64, self.device)

    @property
    def edge_index(self) -> Tensor:
        """PyG's `edge_index`, [2, e] int64 (source row, target row), sorted by target."""
        return self._copy_of("edge_index", self.graphs.adj.col, self._edge_index)

    def _edge_index(self, _: Tensor) -> Tensor:
        rowptr, col = self._gather_edges(self.graphs.adj)
        return torch.stack([col, expand_rows(rowptr, self.num_edges)]).long()

    @property
    def edge_weight(self) -> Tensor | None:
        """One weight for each column of `edge_index`, [e], or None where all are 1."""
        weight = self.graphs.adj.weight
        if weight is None:
            return None
        return self._copy_of(
            "edge_weight", weight, lambda w: self._own(take(w, self.edges), w.dtype)
        )

    @property
    def edge_attr(self) -> Tensor | None:
        """A row for each column of `edge_index`, [e, D] or [e], or None. `FlexGCN` reads none."""
        attr = self.graphs.edge_attr
        if attr is None:
            return None
        return self._copy_of("edge_attr", attr, lambda a: self._own_features(take(a, self.edges)))

    def pooling(self, mean: bool) -> Adjacency:
        """ρ as a matrix, [B, n]: a row of ones, or of 1/n_i, a graph."""
        return pooling_matrix(self.batch, self.ptr, self.graphs.scale.dtype, mean)

    @kept
    def readout(self, order: int, normalize: bool, mean: bool) -> list[Adjacency]:
        """ρ, ρÂ, …, ρÂ^{κ-1}, each [B, n]: a row holds one weight for each node of its graph."""
        weights = self.graphs.pool_weights(order, normalize, mean)
        places = self._placed_nodes
        node = places.row
        ptr, batch = places.ptr.to(node.dtype), places.graph.to(node.dtype)
        matrices = []
        for k in range(order):
            value = aligned(take(weights[k], self.nodes))
            transposed = (node, batch, value)
            matrices.append(Adjacency(ptr, node[:-1], value, self.num_nodes, transposed))
        return matrices

    def to(self, device: torch.device | str | None, non_blocking: bool = False) -> "GraphBatch":
        """These graphs alone, on `device`, or where they are for None; `non_blocking` is accepted,
        as PyG's, and ignored.

        Raises:
            InputError: it is given a dtype.
        """
        if isinstance(device, torch.dtype):
            raise InputError(f"a batch keeps its dtype: give the PackedGraphs .to({device})")
        if device is None or indexed(device) == self.device:
            return self
        return self.graphs.subset(self._positions).to(device).batch(slice(None))
