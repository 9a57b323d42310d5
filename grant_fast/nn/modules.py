"""What a network is put together from, beside its convolutions: norms, activations, encoders."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import native
from ..caching import kept
from ..errors import InputError, whole_number
from ..graphs.flat import FlatGraphs
from ..graphs.kinds import MOST_KINDS, find_kinds
from ..ops import autocasts
from ..ops.dispatch import takes_kernels, takes_native
from ..ops.normed import batch_norm

#: Of fewer nodes on a CPU each is embedded by itself: finding their kinds would take longer.
FEW_NODES = 256
#: From so many rows on a GPU should gain more by a batch norm's kernels than Python loses by
#: starting five of them: an estimate, since no device has run them.
MANY_ROWS = 1 << 16
#: For a dataset and the key of a table, the kinds and what makes their rows of the table's.
_matrices: WeakKeyDictionary[FlatGraphs, dict[Any, tuple[Tensor, Any]]] = WeakKeyDictionary()

#: Categories in each of OGB's nine atom columns (`ogb.utils.features.get_atom_feature_dims`).
ATOM_CARDINALITIES = (119, 5, 12, 12, 10, 6, 6, 2, 2)


class BatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` that takes a batch of one node or none, of which there is no deviation.

    Such a batch is normalised with the running statistics and leaves them as they are.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] < 2:
            stats = (self.running_mean, self.running_var)
            return F.batch_norm(x, *stats, self.weight, self.bias, eps=self.eps)
        return super().forward(x)

    @property
    def kernels_know_it(self) -> bool:
        """Whether the Triton kernels can do all that it does in training."""
        usual = self.affine and self.track_running_stats and self.momentum is not None
        return usual and self.weight.dtype == torch.float32

    def by_kernels(
        self,
        x: Tensor,
        relu: bool,
        backend: str | None,
        count: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor | None:
        """act(self(x)), and its dropout, [n, h], by the Triton kernels; None where PyTorch is to.

        So below `MANY_ROWS` rows unless padded, and under torch.compile, which fuses norms itself.

        Args:
            relu: act is a ReLU instead of the identity.
            backend: as for `FlexConv`.
            count: see `GraphBatch.node_count`.
            dropout: the probability, below 1, of dropping an entry of that.
        """
        if torch.compiler.is_compiling() or not (self.kernels_know_it and self.training):
            return None
        if (count is None and x.shape[0] < MANY_ROWS) or not takes_kernels(x, backend):
            return None
        settings = self.eps, relu, count, dropout
        out, (mean, _, variance) = batch_norm(x, self.weight, self.bias, *settings)
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        self.num_batches_tracked.add_(1)
        torch._foreach_lerp_([self.running_mean, self.running_var], [mean, variance], self.momentum)
        return out

    @property
    def is_affine_map(self) -> bool:
        """Whether it is one in evaluation mode, with running statistics and learned factors."""
        return self.affine and self.running_mean is not None and self.running_var is not None

    def folded_into(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights [κ, h_in, h] and bias [h] of a convolution with this norm behind it."""
        assert self.running_mean is not None and self.running_var is not None
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - scale * self.running_mean
        return weight * scale, shift if bias is None else torch.addcmul(shift, scale, bias)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch_norm": BatchNorm,
    "layer_norm": nn.LayerNorm,
}


class AtomEncoder(nn.Module):
    """The sum of one learned vector per categorical column, as in OGB's atom encoder.

    Args:
        out_channels: width of the vectors.
        cardinalities: categories in each column; OGB's nine atom columns by default.

    **Shapes:** input [n, len(cardinalities)] integers, output [n, out_channels]; `weight`
    [sum(cardinalities), out_channels], with the columns' tables stacked.

    Raises:
        InputError: `out_channels` is not a whole number above 0.
    """

    offset: Tensor

    def __init__(
        self, out_channels: int, cardinalities: Sequence[int] = ATOM_CARDINALITIES
    ) -> None:
        super().__init__()
        whole_number("out_channels", out_channels)
        self.out_channels, self.cardinalities = out_channels, tuple(cardinalities)
        self.weight = nn.Parameter(torch.empty(sum(self.cardinalities), out_channels))
        offset = torch.empty(len(self.cardinalities), dtype=torch.long)
        self.register_buffer("offset", offset, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform in each column's own table."""
        self._fill_offset()
        for table in self.weight.split(self.cardinalities):
            nn.init.xavier_uniform_(table)

    @torch.no_grad()
    def _fill_offset(self) -> None:
        """Where each column's table begins; not saved, and lost where memory is made anew."""
        if self.offset.device != self.weight.device or self.offset.is_inference():
            self.offset = torch.empty_like(self.offset, device=self.weight.device)
        starts = [sum(self.cardinalities[:column]) for column in range(len(self.cardinalities))]
        self.offset.copy_(torch.tensor(starts, device="cpu"))

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._fill_offset()

    def forward(self, x: Tensor, smooth: bool = False) -> Tensor:
        """[n, out_channels]; raises InputError on a wrong width or, on the CPU, category.

        With `smooth` it has all derivatives, as `FlexGCN`'s backend "reference" wants.
        """
        weight = self.weight  # once: something may compute it
        self._check_shape(x)
        watched = native.is_watched()
        seen = x.device.type == "cpu" and not watched and not torch.compiler.is_compiling()
        smooth = smooth or watched
        learns = seen and torch.is_grad_enabled() and not smooth and not autocasts(x)
        if learns and len(x) >= FEW_NODES:
            found = find_kinds(x)
            if found is not None and len(found[0]) <= MOST_KINDS:
                return (self._count(found[0], weight) @ weight).index_select(0, found[1])
        if seen and x.numel():
            self._check_categories(x)
        row = x.long() + self.offset
        if smooth or (learns and len(x) < FEW_NODES):
            return F.embedding(row, weight).sum(1)
        # In a third of the memory traffic; but it has no second derivative, and a slow first one.
        return F.embedding_bag(row, weight, mode="sum")

    def of_kinds(self, graphs: FlatGraphs, backend: str | None = None) -> Tensor:
        """The rows of a dataset's kinds of nodes, [m, out_channels], as `self(graphs.kinds[0])`.

        They are a product with a constant matrix, and its gradient is another: the gradient of a
        gathered sum would sort. The matrix is kept for a dataset: sparse where the compiled CPU
        kernels may multiply, else dense, of a few hundred kinds.

        Args:
            backend: as for `FlexConv`.
        """
        assert graphs.kinds is not None, "the dataset has kinds of nodes"
        x, transformed = graphs.kinds[0], torch._C._are_functorch_transforms_active()
        if transformed or autocasts(x):
            return self(x)
        weight = self.weight  # once: something may compute it
        sparse = takes_native(weight, None, backend) and native.multiplies(weight)
        if not sparse and len(x) > MOST_KINDS:
            return self(x)
        made, key = _matrices.setdefault(graphs, {}), (self.cardinalities, weight.dtype, sparse)
        if key not in made or made[key][0] is not x:  # other kinds, where X was written to
            make = self._choices if sparse else self._count
            made[key] = x, make(x, weight)
        _, matrix = made[key]
        return native.sum_of_chosen(weight, matrix) if sparse else matrix @ weight

    @kept
    @torch.no_grad()
    def _count(self, x: Tensor, weight: Tensor) -> Tensor:
        """How often each row of the table is in each row of x, [m, sum(cardinalities)]."""
        rows = self._rows(x)
        out = weight.new_zeros(len(x), len(weight))
        return out.scatter_add_(1, rows, torch.ones_like(rows, dtype=out.dtype))

    @kept
    @torch.no_grad()
    def _choices(self, x: Tensor, weight: Tensor) -> native.Choices:
        """Which rows of the table are in each row of x."""
        return native.Choices.of(self._rows(x), len(weight))

    def _rows(self, x: Tensor) -> Tensor:
        self._check_shape(x)
        if x.device.type == "cpu" and x.numel() and not native.is_watched():
            self._check_categories(x)
        return x.long() + self.offset

    def _check_shape(self, x: Tensor) -> None:
        if x.dim() != 2 or x.shape[1] != len(self.cardinalities) or x.is_floating_point():
            raise InputError(
                f"the encoder takes integers [num_nodes, {len(self.cardinalities)}], "
                f"not {x.dtype} of shape {tuple(x.shape)}"
            )

    def _check_categories(self, x: Tensor) -> None:
        low, high = x.amin(0).tolist(), x.amax(0).tolist()
        for column, size in enumerate(self.cardinalities):
            if low[column] < 0 or high[column] >= size:
                wrong = low[column] if low[column] < 0 else high[column]
                remedy = (
                    ": give OGB's features, as PackedGraphs.from_smiles makes them "
                    "(torch_geometric.utils.from_smiles makes others)"
                )
                raise InputError(
                    f"x holds category {wrong} in column {column}, which has 0 to {size - 1}"
                    + remedy * (self.cardinalities == ATOM_CARDINALITIES)
                )

    def extra_repr(self) -> str:
        return f"{self.out_channels}, columns={len(self.cardinalities)}"
