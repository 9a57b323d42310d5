"""What the kernels read of a batch: its graphs' positions, and the dataset that holds them."""

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ..adjacency import Adjacency
from ..batches.edges import BatchAdjacency
from ..batches.layout import DatasetSide
from . import loading
from .loading import pointer

if TYPE_CHECKING:
    from ..graphs.flat import FlatGraphs

#: A tile holds whole graphs: beyond this many nodes in one, it would no longer fit in the cache.
#: (Beyond what int16 counts, `grouped` could not list their edges, either.)
MAX_NODES = 4096
#: Where both widths of a layer are above this, its weights no longer stay in the cache from tile to
#: tile, and products of all rows at once are faster: `dense`'s, or PyTorch's.
MAX_WIDTH = 320
NOT_COMPILED = (
    "not compiled: where there is GCC or Clang, pip install --force-reinstall --no-deps . in the "
    "folder of the sources, then work in another folder (in that one, Python finds the sources)"
)
#: Rows of a part, the unit of work of a thread; and how many parts there are at most.
PART_ROWS, MAX_PARTS = 1024, 64
#: Every part adds up its own dW; all of them together stay below this.
PARTIAL_BYTES = 32 << 20


def takes(x: Tensor, adjacency: Adjacency | None = None) -> bool:
    """Whether the kernels compute this layer; `why_not` gives the reason where they do not."""
    return why_not(x, adjacency) is None


def why_not(
    x: Tensor, adjacency: Adjacency | None = None, weight: Tensor | None = None
) -> str | None:
    """Why the compiled kernels cannot compute this, or None where they can."""
    if torch.compiler.is_compiling() or is_watched():
        return "the call is being traced"
    if loading.library() is None:
        return f"the CPU kernels were {NOT_COMPILED}"
    for name, t in (("x", x), ("the weight", x if weight is None else weight)):
        if t.device.type != "cpu" or type(t) not in (Tensor, nn.Parameter):
            return f"{name} is a {type(t).__name__} on the {t.device.type}"
    if x.dtype != torch.float32 or (weight is not None and weight.dtype != torch.float32):
        return f"x is {x.dtype}, not float32"
    if weight is not None and is_wide(*weight.shape[1:]):
        return f"both widths are above {MAX_WIDTH}, and the weights would not stay in the cache"
    if adjacency is None:
        return None
    if not isinstance(adjacency, BatchAdjacency):
        return (
            "the graphs are no GraphBatch, and PyG's tensors are packed where the batch vector "
            "ascends and edges stay within its graphs"
        )
    graphs = adjacency.batch.graphs
    if graphs.scale.dtype != torch.float32:
        return f"the graphs are {graphs.scale.dtype}, not float32"
    if graphs.max_nodes > MAX_NODES:
        return f"one of the graphs has {graphs.max_nodes} nodes (above {MAX_NODES})"
    rows, threads = adjacency.batch.num_nodes, torch.get_num_threads()
    largest = min(graphs.max_nodes, rows)
    if largest > PART_ROWS and threads * largest > 2 * rows:
        return f"a graph of {largest} of {rows} nodes would keep most of {threads} threads waiting"
    return None


def is_watched() -> bool:
    """Whether PyTorch follows the operators that are called, and would miss what is done here: for
    its function transforms, forward-mode gradients, a dispatch mode (as make_fx), or TorchScript.
    """
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return transformed or torch._C._len_torch_dispatch_stack() > 0 or torch.jit.is_tracing()


def is_wide(h_in: int, h_out: int) -> bool:
    """Whether the tiles' kernels leave a layer of these widths to products of all rows."""
    return min(h_in, h_out) > MAX_WIDTH


class _Side(ctypes.Structure):
    """`side` of kernels/cpu/graphs.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in DatasetSide._fields)


class _Graphs(ctypes.Structure):
    """`graphs` of kernels/cpu/graphs.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ptr", "first", "scale")),
        ("sides", _Side * 2),
        ("part", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "degree")),
    )


def degree(graphs: "FlatGraphs") -> int:
    """Edges a node: what a kernel's choice between two ways depends on."""
    return graphs.num_edges // max(1, graphs.num_nodes)


def parts_of(rows: int, weight_bytes: int, part_rows: int = PART_ROWS) -> int:
    """Into how many parts of `part_rows` or more rows are split, each of which adds up its dW."""
    return max(1, min(MAX_PARTS, rows // part_rows, PARTIAL_BYTES // weight_bytes))


def split(adjacency: BatchAdjacency, weight_bytes: int) -> tuple[Any, int]:
    """The batch in `parts` parts for the threads, for the library; and how many those are.

    What points at memory is made anew for each call: tensors move, into shared memory for one, and
    batches can be copied.
    """
    batch = adjacency.batch
    parts = parts_of(batch.num_nodes, weight_bytes)
    ptr, first = batch.host_rows
    part = batch.parts(parts)
    edges = batch.graphs.edges(adjacency.normalize)
    sides = (_Side * 2)(*(_Side(*map(pointer, side)) for side in edges.sides))
    memory = map(pointer, (ptr, first, edges.scale))
    struct = _Graphs(*memory, sides, pointer(part), batch.num_graphs, degree(batch.graphs))
    struct.kept = ptr, first, edges, part  # pointers do not keep what they point at
    return ctypes.byref(struct), parts
