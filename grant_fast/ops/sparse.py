"""The flexible layer over any CSR matrix: the operator that the Triton kernels for CSR compute.

Registered with a fake and an autograd formula, so that `torch.compile` takes it whole. The kernels
are imported when it first runs.
"""

import torch
from torch import Tensor

from ..adjacency import Adjacency
from .registration import operator

#: What an operator takes of a matrix: its CSR, and that of its transpose for a backward pass.
MATRIX = "Tensor rowptr, Tensor col, Tensor value, Tensor? rowptr_t, Tensor? col_t, Tensor? value_t"


@operator(
    "flex_conv_csr",
    f"(Tensor x, Tensor weight, Tensor? bias, bool relu, {MATRIX}) -> Tensor",
)
def _flex_conv_csr(
    x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, *csr: Tensor
) -> Tensor:
    """Y, [n, h_out]."""
    from ..kernels.csr import CSR
    from ..kernels.csr_layer import forward

    bias = None if bias is None else bias.contiguous()
    return forward(x, weight.contiguous(), bias, CSR(*csr[:3]), relu=relu)


@_flex_conv_csr.register_fake
def _(x, weight, *others):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape[0], weight.shape[2])


@operator(
    "flex_conv_csr_backward",
    "(Tensor grad, Tensor x, Tensor? y, Tensor weight, bool needs_dx, bool needs_dvalue, "
    f"{MATRIX}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _flex_conv_csr_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    needs_dx: bool,
    needs_dvalue: bool,
    *csr: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dX, dW, db, dvalue); what is not needed is empty. `y` is the output of a ReLU."""
    from ..kernels.csr import CSR
    from ..kernels.csr_layer import backward, backward_with_values

    grad, matrix = masked(grad, y), CSR(*csr[:3])
    operands = (grad, x, weight.contiguous(), matrix, CSR(*csr[3:]))
    if needs_dvalue:
        dx, dw, dvalue = backward_with_values(*operands)
        return dx, dw, grad.sum(0), dvalue
    part, dw = backward(*operands, needs_dx=needs_dx)
    dx = x.new_empty(0) if part is None else part
    return dx, dw, grad.sum(0), matrix.value.new_empty(0)


@_flex_conv_csr_backward.register_fake
def _(grad, x, y, weight, needs_dx, needs_dvalue, rowptr, col, value, *transposed):  # type: ignore[no-untyped-def]
    dx = torch.empty_like(x) if needs_dx or needs_dvalue else x.new_empty(0)
    dw = torch.empty_like(weight, memory_format=torch.contiguous_format)
    dvalue = value.new_empty(value.shape[0] if needs_dvalue else 0)  # len() would be a constant
    return dx, dw, weight.new_empty(weight.shape[2]), dvalue


def masked(grad: Tensor, y: Tensor | None) -> Tensor:
    """dY before a ReLU whose output was `y`, contiguous; `grad` itself where there was none."""
    grad = grad.contiguous()
    return grad if y is None else torch.ops.aten.threshold_backward(grad, y, 0)


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weight, _, relu, *csr = inputs
    # A layer's output is the next one's input: keeping it for the ReLU costs nothing more.
    ctx.save_for_backward(x, output if relu else None, weight, *csr)


def _grad(ctx, grad):  # type: ignore[no-untyped-def]
    x, y, weight, *csr = ctx.saved_tensors
    require_transpose(csr[3])
    needs_dx, needs_dw, needs_db, _, _, _, needs_dvalue = ctx.needs_input_grad[:7]
    dx, dw, db, dvalue = torch.ops.grant_fast.flex_conv_csr_backward(
        grad, x, y, weight, needs_dx, needs_dvalue, *csr
    )
    return (
        dx if needs_dx else None,
        dw if needs_dw else None,
        db if needs_db else None,
        *[None] * 3,
        dvalue if needs_dvalue else None,
        *[None] * 3,
    )


_flex_conv_csr.register_autograd(_grad, _setup)


def require_transpose(rowptr_t: Tensor | None) -> None:
    if rowptr_t is None:
        raise RuntimeError(
            "this FlexConv output was computed without the transposed adjacency: "
            "run the forward pass with gradients enabled"
        )


def flex_conv_csr(
    x: Tensor, weight: Tensor, bias: Tensor | None, adjacency: Adjacency, relu: bool
) -> Tensor:
    """act(Σ_k Â^k X W_k + b) over any square matrix, by the kernels for CSR."""
    matrix = matrix_of(adjacency)
    return torch.ops.grant_fast.flex_conv_csr(x.contiguous(), weight, bias, relu, *matrix)


def matrix_of(adjacency: Adjacency) -> tuple[Tensor | None, ...]:
    """`MATRIX`: the CSR, and that of the transpose where gradients are enabled."""
    # The transpose serves the backward pass alone; making it may cost a sort.
    transposed = adjacency.transposed if torch.is_grad_enabled() else (None, None, None)
    return (*adjacency.csr, *transposed)
