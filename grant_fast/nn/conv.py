"""One flexible graph convolution."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import ops
from ..adjacency import Adjacency
from ..batches import GraphBatch
from ..batches.loose import LooseGraphs
from ..errors import InputError, whole_number, yes_or_no
from ..graphs.on_the_fly import packed
from ..ops.dispatch import check_backend


class FlexConv(nn.Module):
    r"""One flexible graph convolution (paper §4.1, the layer before its activation).

    .. math:: Y = \sum_{k=0}^{\kappa-1} \hat A^k X W_k + b

    with :math:`\hat A = D^{-1/2} A D^{-1/2}` (D the weighted in-degree, no self loops added) where
    `normalize`, else :math:`\hat A = A`. It is PyG's `TAGConv` with `K = order - 1`, and keeps one
    copy of X for the backward pass instead of κ. The paper's formula has A as it is, and no b.

    Args:
        in_channels: width of X.
        out_channels: width of Y.
        order: κ, the number of terms; 1 is a linear layer on the nodes.
        bias: learn b.
        normalize: use :math:`\hat A` instead of A.
        backend: what computes it: "triton" (our kernels), "torch", or "auto", see
            `grant_fast.explain`; or "reference": PyTorch's own operators, which are slow and keep κ
            copies of X and a row for each edge and hop, but have all derivatives (`create_graph`,
            `torch.func`, forward mode), where the others have only the first. None uses the
            environment variable GRANT_FAST_BACKEND, or "auto" if that is not set. The choice
            changes neither the meaning of the result nor the saved weights, and the attribute may
            be set again at any time.

    **Shapes:** input [n, in_channels], output [n, out_channels]; `weight`
    [order, in_channels, out_channels], `bias` [out_channels].

    Raises:
        InputError: a width or an order that is not a whole number above 0, or an unknown backend.
    """

    if TYPE_CHECKING:  # a module's own says nothing
        __call__: Callable[..., Tensor]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        order: int = 4,
        bias: bool = True,
        normalize: bool = True,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = whole_number("in_channels", in_channels)
        self.out_channels = whole_number("out_channels", out_channels)
        self.order = whole_number("order", order)
        self.normalize = yes_or_no("normalize", normalize)
        self.backend = check_backend(backend)
        self.weight = nn.Parameter(torch.empty(order, in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if yes_or_no("bias", bias) else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """U(-1/√fan_in, 1/√fan_in) with fan_in = κ·in_channels, as `nn.Linear` on [X, ÂX, …].

        Raises:
            InputError: something computes the weights, which would be computed again.
        """
        if self._parameters.get("weight") is None:
            raise InputError(
                "the weights are computed, by a parametrization or pruning, so drawing them would "
                "change nothing: remove that first"
            )
        bound = (self.order * self.in_channels) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(
        self, x: Tensor, edge_index: Any = None, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Y, [n, out_channels].

        Args:
            x: [n, in_channels].
            edge_index: [2, E] (source → target), a PyG `EdgeIndex`, the transposed adjacency as a
                torch sparse tensor or `torch_sparse.SparseTensor`, or the `GraphBatch` that x
                belongs to; or a ready `Adjacency`, which is taken as it is (already normalised or
                not).
            edge_weight: [E], floating point, may require gradients; None is 1 everywhere.

        Raises:
            InputError: wrong shapes or dtypes, (on the CPU) edges out of range, or a backend that
                cannot compute this, and why not.
        """
        weight = self.weight  # once: something may compute it
        adjacency = self._propagation(weight, x, edge_index, edge_weight)
        return ops.flex_conv(x, weight, self.bias, adjacency, backend=self.backend)

    def _propagation(
        self, weight: Tensor, x: Tensor, edge_index: Any = None, edge_weight: Tensor | None = None
    ) -> Adjacency:
        """Â, [n, n], of what `forward` takes, and of the weights; args and errors as there."""
        if isinstance(x, GraphBatch) or edge_index is None:
            raise InputError(
                "a layer takes features and edges: give conv(x, edge_index) or conv(batch.x, batch)"
            )
        if isinstance(edge_index, (GraphBatch, Adjacency)) and edge_weight is not None:
            kind = type(edge_index).__name__
            raise InputError(f"edge_weight goes only with edge_index: the {kind} has its own")
        if isinstance(edge_index, GraphBatch):
            if not torch.compiler.is_compiling():
                edge_index.check_unchanged(but="x")
                check_precision(edge_index, self.any_parameter, self.normalize)
            return edge_index.adjacency(self.normalize)
        if isinstance(edge_index, Adjacency):
            return edge_index
        graphs = LooseGraphs(x, edge_index, edge_weight, None, None)
        ops.check_features(x, weight)  # before the edges, whose nodes it counts
        taken = packed(graphs, weight, pooled=False, backend=self.backend)
        return taken.adjacency(self.normalize)

    @property
    def any_parameter(self) -> Tensor:
        """A parameter of the weights' dtype and device (to read the weights themselves may compute
        them anew); the weights where there is no parameter, as in a replica."""
        weight = self._parameters.get("weight")
        if weight is None:
            weight = next(filter(Tensor.is_floating_point, self.parameters()), None)
        return self.weight if weight is None else weight

    @classmethod
    def from_tag_conv(cls, conv: nn.Module) -> "FlexConv":
        """A layer with the weights of a PyG `TAGConv`, and the same values and gradients.

        The weights stay frozen if all of them are, and the bias if it is. `load_state_dict` takes
        what a `TAGConv` saved as it is.

        Raises:
            InputError: `conv` is not a `TAGConv` itself, or one that aggregates in another way than
                the sum from source to target, or one that has no weights yet.
        """
        if type(conv).__name__ != "TAGConv" or not hasattr(conv, "lins"):
            raise InputError(f"from_tag_conv takes a PyG TAGConv, not a {type(conv).__name__}")
        for name, known in (("aggr", ("add", "sum")), ("flow", ("source_to_target",))):
            if (found := getattr(conv, name, known[0])) not in known:
                raise InputError(
                    f"the TAGConv has {name}={found!r}: FlexConv can only take over one that sums "
                    f"from source to target, with {name}={known[0]!r}"
                )
        lins: Sequence[nn.Linear] = conv.lins  # type: ignore[assignment]
        if isinstance(lins[0].weight, nn.UninitializedParameter):
            raise InputError("the TAGConv has no weights before its first call: call it once")
        bias: Tensor | None = conv.bias  # type: ignore[assignment]
        out = cls(
            lins[0].weight.shape[1],
            lins[0].weight.shape[0],
            order=len(lins),
            normalize=bool(conv.normalize),
            bias=bias is not None,
        ).to(lins[0].weight)
        with torch.no_grad():
            out.weight.copy_(torch.stack([lin.weight.T for lin in lins]))
            if out.bias is not None and bias is not None:
                out.bias.copy_(bias).requires_grad_(bias.requires_grad)
        out.weight.requires_grad_(any(lin.weight.requires_grad for lin in lins))
        return out.train(conv.training)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Takes what a `TAGConv` of this order saved, too."""
        saved = [name for name in state_dict if name.startswith(f"{prefix}lins.")]
        names = [f"{prefix}lins.{k}.weight" for k in range(len(saved))]
        if saved and f"{prefix}weight" not in state_dict and sorted(saved) == sorted(names):
            if len(saved) != self.order:
                errors: list[str] = rest[-1]
                errors.append(f"a TAGConv with K={len(saved) - 1} needs order={len(saved)}")
            state_dict[f"{prefix}weight"] = torch.stack([state_dict.pop(name).T for name in names])
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        chosen = "" if self.backend is None else f", backend={self.backend!r}"
        return (
            f"{self.in_channels}, {self.out_channels}, order={self.order}, "
            f"normalize={self.normalize}, bias={self.bias is not None}{chosen}"
        )


def check_precision(batch: GraphBatch, weight: Tensor, normalize: bool) -> None:
    """Refuse a matrix Â that is less exact than the weights, unless autocast has to do with both
    (InputError)."""
    given, dtype = batch.graphs.scale.dtype, weight.dtype
    casts = ops.autocasts(weight) and dtype != torch.float64
    if normalize and not casts and torch.finfo(given).eps > torch.finfo(dtype).eps:
        raise InputError(
            f"the graphs are {given} but the weights are {dtype}: convert the graphs with "
            f"graphs.to(dtype={dtype}), or the model"
        )
