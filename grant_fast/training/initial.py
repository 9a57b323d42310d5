"""The paper's head and first weights, for runs that repeat it."""

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from ..nn import FlexConv, FlexGCN


class _TimesMatrix(nn.Module):
    """W₁ [κ, in, width] → W₁W₂ [κ, in, out]."""

    def __init__(self, second: nn.Linear) -> None:
        super().__init__()
        self.second = second

    def forward(self, first: Tensor) -> Tensor:
        return first @ self.second.weight.T


def factor_last_layer(model: FlexGCN, out_channels: int) -> None:
    """Give the last convolution a second linear map, with no activation between (in place).

    Two linear maps in a row are one, W = W₁W₂ and b = b₁W₂ + b₂; only the optimiser sees two. The
    product is taken of the weights, so that nodes and graphs pass one map of the outer width, in
    training as in inference. The last convolution of `model`, [κ, in, width], becomes W₁ and b₁.
    Both biases are the convolution's: an empty graph has none, and a sum counts them at each node.

    Args:
        model: a network as yet without such a head; its pooling is linear, or none.
        out_channels: columns of the network's output.
    """
    conv = model.convs[-1]
    assert isinstance(conv, FlexConv)
    second = nn.Linear(conv.out_channels, out_channels)
    # "unsafe" is torch's word for a map that changes the shape.
    register_parametrization(conv, "weight", _TimesMatrix(second), unsafe=True)
    register_parametrization(conv, "bias", second, unsafe=True)  # b₁ → b₁W₂ + b₂
    conv.out_channels = out_channels


@torch.no_grad()
def draw_kaiming(model: nn.Module) -> None:
    """Draw every matrix, embeddings too, from U(−√(6/fan), √(6/fan)), as the paper's code does.

    fan is κ·in for a convolution [κ, in, out] (its matrix is the stack of the κ), in for a linear
    map [out, in], and the width for an embedding [categories, width]. Vectors stay as they are.
    """
    for parameter in model.parameters():
        if parameter.dim() > 1:
            fan = parameter[..., 0].numel() if parameter.dim() == 3 else parameter.shape[1]
            bound = (6 / fan) ** 0.5
            parameter.uniform_(-bound, bound)
