"""The flexible layer and its hops over any CSR matrix: by the Triton kernels, or by products,
PyTorch's or the compiled CPU kernels'.

Registered with a fake and an autograd formula, so that `torch.compile` takes it whole. The Triton
kernels are imported when they first run.
"""

import torch
from torch import Tensor

from .. import native, reference
from ..adjacency import Adjacency
from .registration import operator

#: What an operator takes of a matrix: its CSR, and that of its transpose for a backward pass.
MATRIX = "Tensor rowptr, Tensor col, Tensor value, Tensor? rowptr_t, Tensor? col_t, Tensor? value_t"


def _products(by: str) -> reference.Products:
    """Who multiplies: the compiled kernels where they may, or PyTorch."""
    return native.PRODUCTS if by == "native" else reference.PRODUCTS


@operator(
    "flex_conv",
    f"(Tensor x, Tensor weight, Tensor? bias, bool relu, str by, {MATRIX}) -> Tensor",
)
def _flex_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, by: str, *csr: Tensor
) -> Tensor:
    """Y, [n, h_out]."""
    if by == "triton":
        from ..kernels.csr import CSR
        from ..kernels.csr_layer import forward

        bias = None if bias is None else bias.contiguous()
        return forward(x, weight.contiguous(), bias, CSR(*csr[:3]), relu=relu)
    out = reference.flex_conv(x, weight, bias, *csr[:3], by=_products(by))
    return out.relu_() if relu else out


@_flex_conv.register_fake
def _(x, weight, *others):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape[0], weight.shape[2])


@operator(
    "flex_conv_backward",
    "(Tensor grad, Tensor x, Tensor? y, Tensor weight, bool needs_dx, bool needs_dvalue, str by, "
    f"{MATRIX}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _flex_conv_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    needs_dx: bool,
    needs_dvalue: bool,
    by: str,
    *csr: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dX, dW, db, dvalue); what is not needed is empty. `y` is the output of a ReLU."""
    grad, none = masked(grad, y), x.new_empty(0)
    dvalue = csr[2].new_empty(0)
    if by == "triton":
        from ..kernels.csr import CSR
        from ..kernels.csr_layer import backward, backward_with_values

        operands = (grad, x, weight.contiguous(), CSR(*csr[:3]), CSR(*csr[3:]))
        if needs_dvalue:
            dx, dw, dvalue = backward_with_values(*operands)
        else:
            dx, dw = backward(*operands, needs_dx=needs_dx)
    else:
        who = _products(by)
        dx, dw = reference.flex_conv_backward(grad, x, weight, *csr, needs_dx=needs_dx, by=who)
        if needs_dvalue:
            dvalue = reference.flex_conv_value_grad(grad, x, weight, *csr, by=who)
    return dx if needs_dx and dx is not None else none, dw, grad.sum(0), dvalue


@_flex_conv_backward.register_fake
def _(grad, x, y, weight, needs_dx, needs_dvalue, by, rowptr, col, value, *transposed):  # type: ignore[no-untyped-def]
    dx = torch.empty_like(x) if needs_dx else x.new_empty(0)
    dw = torch.empty_like(weight, memory_format=torch.contiguous_format)
    dvalue = value.new_empty(value.shape[0] if needs_dvalue else 0)  # len() would be a constant
    return dx, dw, weight.new_empty(weight.shape[2]), dvalue


def masked(grad: Tensor, y: Tensor | None) -> Tensor:
    """dY before a ReLU whose output was `y`, contiguous; `grad` itself where there was none."""
    grad = grad.contiguous()
    return grad if y is None else torch.ops.aten.threshold_backward(grad, y, 0)


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weight, _, relu, ctx.by, *csr = inputs
    # A layer's output is the next one's input: keeping it for the ReLU costs nothing more.
    ctx.save_for_backward(x, output if relu else None, weight, *csr)


def _grad(ctx, grad):  # type: ignore[no-untyped-def]
    x, y, weight, *csr = ctx.saved_tensors
    require_transpose(csr[3])
    needs_dx, needs_dw, needs_db, *_, needs_dvalue = ctx.needs_input_grad[:8]
    dx, dw, db, dvalue = torch.ops.grant_fast.flex_conv_backward(
        grad, x, y, weight, needs_dx, needs_dvalue, ctx.by, *csr
    )
    return (
        dx if needs_dx else None,
        dw if needs_dw else None,
        db if needs_db else None,
        *[None] * 4,
        dvalue if needs_dvalue else None,
        *[None] * 3,
    )


_flex_conv.register_autograd(_grad, _setup)


def require_transpose(rowptr_t: Tensor | None) -> None:
    if rowptr_t is None:
        raise RuntimeError(
            "this FlexConv output was computed without the transposed adjacency: "
            "run the forward pass with gradients enabled"
        )


def flex_conv_csr(
    x: Tensor, weight: Tensor, bias: Tensor | None, adjacency: Adjacency, relu: bool, by: str
) -> Tensor:
    """act(Σ_k Â^k X W_k + b) over any square matrix; `by` "triton", or by products of "native" or
    of "torch"."""
    matrix = matrix_of(adjacency)
    return torch.ops.grant_fast.flex_conv(x.contiguous(), weight, bias, relu, by, *matrix)


def matrix_of(adjacency: Adjacency) -> tuple[Tensor | None, ...]:
    """`MATRIX`: the CSR, and that of the transpose where gradients are enabled."""
    # The transpose serves the backward pass alone; making it may cost a sort.
    transposed = adjacency.transposed if torch.is_grad_enabled() else (None, None, None)
    return (*adjacency.csr, *transposed)


@operator("spmm", f"(Tensor x, str by, {MATRIX}) -> Tensor")
def _spmm(x: Tensor, by: str, *csr: Tensor) -> Tensor:
    return _products(by).spmm(*csr[:3], x.contiguous())


@_spmm.register_fake
def _(x, by, rowptr, *others):  # type: ignore[no-untyped-def]
    return x.new_empty(rowptr.shape[0] - 1, x.shape[1])


def _spmm_setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.by = inputs[1]
    ctx.save_for_backward(*inputs[5:])


def _spmm_grad(ctx, grad):  # type: ignore[no-untyped-def]
    dx = torch.ops.grant_fast.spmm(grad, ctx.by, *ctx.saved_tensors, None, None, None)
    return dx, *[None] * 7


_spmm.register_autograd(_spmm_grad, _spmm_setup)
