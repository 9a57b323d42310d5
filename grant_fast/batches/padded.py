"""A batch of fixed capacity: refilling it keeps every tensor's address and shape.

So work on it can be recorded once as a CUDA graph, and replayed for each (`training.recording`):

    rows of the batch    │ graph 7 │ graph 2 │ graph 9 │ padding │   `node_count` rows are nodes
    tiles                │ 7 2 │ 9 │ none │ none │ none            │
    a larger graph each  │ 31 │ 4 │ the empty graph after the dataset's last │

Padding rows hold garbage, so only the kernels, which skip them, may sum over rows.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from ..errors import InputError
from ..indexing import cut, room, sizes_to_ptr, spans, take
from .batch import GraphBatch
from .tiles import LARGER, TILE, Segments, Tiles, tile_batch

if TYPE_CHECKING:
    from ..graphs.flat import FlatGraphs


class _Tables(NamedTuple):
    """All that a refill changes, as views of one buffer, so that one copy uploads it."""

    positions: Any
    sizes: Any
    ptr: Any
    first_nodes: Any
    node_count: Any
    tile: Any  # this and the next six are those of `Tiles`
    graph: Any
    row: Any
    one_plane: Any
    two_planes: Any
    three_planes: Any
    four_planes: Any
    nodes: Any  # int32: two in each int64 of the buffer


class NodesAskedFor(InputError):
    """Of a `PaddedBatch` something was asked for that would have rows of padding, too."""


class _OfEachNode:
    """An attribute with a row for each node."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, batch: "PaddedBatch", owner: type) -> NoReturn:
        raise NodesAskedFor(
            f"a recorded step has no {self._name} of its batch, but y and ids (under autocast, the "
            "model itself asks for more)"
        )


class PaddedBatch(GraphBatch):
    """Room for `size` graphs of a dataset. Nothing is in it until it is filled.

    For training by the kernels alone: other operators would compute on its padding, too.

    Args:
        graphs: kept as bits, with targets by graph.
        ids: on the CPU, the graphs that batches are drawn from. Capacity: 1.5 times the expected
            nodes of `size` of them, twice the expected larger graphs; see `_capacity`.
        size: graphs in a batch.
    """

    x, batch = _OfEachNode(), _OfEachNode()
    edge_index, edge_weight, edge_attr = _OfEachNode(), _OfEachNode(), _OfEachNode()
    _tables = ()  # each refill writes to them
    _row: Tensor  # 0, 1, …

    def __init__(self, graphs: "FlatGraphs", ids: Tensor, size: int) -> None:
        assert graphs.bits is not None
        super().__init__(graphs, ids[:0])
        nodes = take(graphs.host_ptr.diff(), ids)
        rows = _capacity(nodes, size, 1.5)
        larger = [
            (2, _capacity((least < nodes) & (nodes <= most), size, 2)) for least, most in LARGER
        ]
        most_tiles = min(size, int(((nodes > 0) & (nodes <= TILE)).sum()))
        one, of_tiles = (size,), ((most_tiles + 1,), (size,), (size,), *larger)
        self._shapes = (one, one, (size + 1,), one, (1,), *of_tiles, (rows // 2 + 1,))
        self._table = torch.zeros(room(self._shapes), dtype=torch.int64, device=graphs.device)
        here = _Tables(*cut(self._table, self._shapes))
        which = torch.arange(size, device=graphs.device)
        # These names shadow `GraphBatch`'s cached properties, which are then never computed.
        self._fixed = vars(self) | {
            "num_graphs": size,
            "num_nodes": rows,
            "node_count": here.node_count,
            "device_positions": here.positions,
            "sizes": here.sizes,
            "ptr": here.ptr,
            "nodes": here.nodes.view(torch.int32)[:rows],
            "tiles": Tiles(*here[5:12], None),
            "segments": Segments(here.ptr, here.first_nodes, which, None),
            "rest": None,
            "_row": torch.arange(rows, device=graphs.device),
        }
        self.hold(ids[:0])

    def fill(self, positions: Tensor) -> bool:
        """Hold the graphs at these positions, [size] int64 on the CPU; False where they do not fit.

        Nothing waits for the device: work given to it before still finds the graphs of before.
        """
        graphs, size = self.graphs, self._fixed["num_graphs"]
        assert graphs.bits is not None
        if len(positions) != size:
            return False
        pinned = self.device.type == "cuda"  # from other memory, the host would wait for the device
        table = torch.empty(len(self._table), dtype=torch.int64, device="cpu", pin_memory=pinned)
        if not self._fill(positions, graphs.host_ptr, graphs.bits.fits, table):
            return False
        self._table.copy_(table, non_blocking=True)
        self.hold(positions)
        return True

    def _fill(self, positions: Tensor, host_ptr: Tensor, fits: Tensor, table: Tensor) -> bool:
        """Write the tables of the graphs at these positions; False where they do not fit."""
        from .. import native

        fixed, num_graphs = self._fixed, self.graphs.num_graphs
        most = [part.shape[-1] for part in fixed["tiles"][:7]]
        capacity = native.Capacity(
            len(positions), fixed["num_nodes"], most[0] - 1, tuple(most[3:]), len(table), num_graphs
        )
        filled = native.fill_room(capacity, positions, host_ptr, fits, table)
        return self._fill_slowly(positions, host_ptr, fits, table) if filled is None else filled

    def _fill_slowly(
        self, positions: Tensor, host_ptr: Tensor, fits: Tensor, table: Tensor
    ) -> bool:
        """`_fill` where nothing was compiled: what `native.fill_room` does is defined here."""
        fixed = self._fixed
        if not bool(fits[positions].all()):
            return False
        first = take(host_ptr, positions)
        sizes = take(host_ptr, positions + 1) - first
        ptr = sizes_to_ptr(sizes)
        count = int(ptr[-1])
        tiles = tile_batch(sizes, positions, ptr[:-1], fits, positions.device)
        pairs = zip(tiles[:7], fixed["tiles"][:7], strict=True)
        too_many = any(found.shape[-1] > most.shape[-1] for found, most in pairs)
        if too_many or not 2 <= count <= fixed["num_nodes"]:
            return False
        new = _Tables(*cut(table.zero_(), self._shapes))
        for larger in (new.one_plane, new.two_planes, new.three_planes, new.four_planes):
            larger[0] = self.graphs.num_graphs
        new = new._replace(nodes=new.nodes.view(torch.int32))
        new.tile[:] = len(tiles.graph)
        nodes = spans(first, sizes, ptr, count, torch.int32, positions.device)
        values = positions, sizes, ptr, first, ptr[-1:], *tiles[:7], nodes
        for part, value in zip(new, values, strict=True):
            part[..., : value.shape[-1]] = value
        return True

    def hold(self, positions: Tensor) -> None:
        """Forget what was derived from the positions before."""
        self.__dict__ = self._fixed | {"_fixed": self._fixed, "_positions": positions}

    def of_nodes(self, values: Tensor, otherwise: int) -> Tensor:
        assert self.node_count is not None
        found = super().of_nodes(values, otherwise)
        return found.masked_fill_(self._row >= self.node_count, otherwise)


def _capacity(values: Tensor, size: int, times: float) -> int:
    """`times` (the expected sum of `size` draws + 6 deviations); at most their largest sum."""
    values = values.double()
    most = values.topk(min(size, len(values))).values.sum()
    usual = size * values.mean() + 6 * math.sqrt(size) * values.std(correction=0)
    return math.ceil(min(most, times * usual))
