"""Every configuration in which dispatch may launch a layer's kernels: those of Y, dX and dW."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from . import layer
from .kernel import Configuration


class Layer(NamedTuple):
    """A layer as the configurations of a kernel are made of it."""

    order: int
    h_in: int
    h_out: int
    dtype: str = "fp32"
    plain: bool = False  # not normalised, without a ReLU and a bias
    representative: bool = False
    place: str = ""  # where X is read: in the batch's order, or "in place", or by "kinds" of nodes
    tf32: bool = False

    @property
    def parts(self) -> int:
        """As `launch.parts` says on NVIDIA; elsewhere, where it says 0, the kernels do not ask."""
        return 1 if self.dtype == "bf16" else 3 if self.dtype == "fp32" and not self.tf32 else 2

    def configuration(self, role: str, constants: dict[str, Any]) -> Configuration:
        kind = (" plain" if self.plain else "") + (f" {self.place}" if self.place else "")
        kind += " TF32" if self.tf32 else ""
        words = f"{role} κ={self.order} {self.h_in}→{self.h_out} {self.dtype}{kind}"
        constants = {"NORMALIZE": not self.plain, "PARTS": self.parts} | constants
        constants |= {"DATASET_X": self.place == "in place", "CODED": self.place == "kinds"}
        return Configuration(words, constants, self.dtype, self.representative, self.tf32)


#: What a program holds on chip is settled by the blocks of columns it takes in (16, 32, or two of
#: 32) and gives out (16 or 32), by the dtype, and by whether rows begin at 16 bytes. In float32 all
#: of the blocks are here, forward and backward, each with all that adds to a kernel: the norm, the
#: bias, the ReLU. Without those, in half precision and in TF32 a kernel does less of the same: a
#: usual layer or a large one stands for all. Kernels that loop over the orders are the same for all
#: but the first.
LAYERS = (
    *(
        Layer(3, *widths, representative=widths == (27, 18))
        for widths in ((9, 9), (9, 27), (27, 18), (64, 16), (64, 64), (33, 48), (63, 33))
    ),
    *(Layer(1, *widths) for widths in ((64, 64), (63, 36))),
    Layer(3, 27, 18, plain=True),
    Layer(3, 27, 18, "bf16", representative=True),
    Layer(3, 64, 64, "fp16"),
    Layer(3, 9, 27, place="in place"),
    *(
        Layer(3, *widths, place="kinds", representative=widths == (63, 33))
        for widths in ((9, 27), (64, 64), (63, 33))
    ),
    Layer(3, 27, 18, tf32=True),
    Layer(3, 63, 33, tf32=True),
)

#: The same of dW over tiles, whose kernel keeps a sum for each order: with the most orders, and
#: with the most of which it takes 32 inputs at a time.
SUMMED_LAYERS = (
    *LAYERS,
    *(layer._replace(order=5, representative=False) for layer in LAYERS if layer.order > 1),
)

#: The same of larger graphs, by how many planes of bits they have. With several planes a program
#: does the same for each: there the layers that take the most registers stand for all.
BLOCK_LAYERS = {
    1: (
        *(
            Layer(3, *widths, representative=widths == (27, 18))
            for widths in ((9, 9), (9, 27), (27, 18), (64, 64), (33, 48), (63, 33))
        ),
        Layer(1, 63, 36),
        Layer(3, 27, 18, "bf16"),
        Layer(3, 64, 64, "fp16"),
        Layer(3, 63, 33, place="kinds", representative=True),
        Layer(3, 63, 33, tf32=True),
    ),
    **dict.fromkeys(
        (2, 3, 4),
        (
            Layer(3, 27, 18, representative=True),
            Layer(3, 64, 64),
            Layer(3, 63, 33, place="kinds"),
        ),
    ),
}

#: How many planes a graph may have, with Hopper's matrix units and without; see `tiles.most_nodes`.
PLANES = (*((planes, True) for planes in (1, 2, 3, 4)), (1, False), (2, False))

Shape = Callable[..., dict[str, int]]


def _convolutions(layers: Iterable[Layer], shape: Shape) -> Iterator[Configuration]:
    for sizes in layers:
        order, h_in, h_out, full = *sizes[:3], not sizes.plain
        forward = {"ORDER": order, "H_IN": h_in, "H_OUT": h_out, "BIAS": full, "RELU": full}
        forward |= {"TRANSPOSE": False, "RELU_IN": False}
        whole = {"PARTS": 0} if order == 1 else {}
        yield sizes.configuration("Y", forward | whole | shape(h_in, h_out))
        if sizes.place:
            continue
        backward = {"ORDER": order, "H_IN": h_out, "H_OUT": h_in, "BIAS": False, "RELU": False}
        backward |= {"TRANSPOSE": True, "RELU_IN": full}
        yield sizes.configuration("dX", backward | whole | shape(h_out, h_in))


def _weight_gradients(layers: Iterable[Layer], shape: Shape) -> Iterator[Configuration]:
    for sizes in layers:
        order, h_in, h_out = sizes[:3]
        gradient = {"ORDER": order, "H_IN": h_in, "H_OUT": h_out, "RELU": not sizes.plain}
        yield sizes.configuration("dW", gradient | shape(h_in, h_out, order))


def _block_convolutions(layers: Mapping[int, Iterable[Layer]]) -> Iterator[Configuration]:
    for planes, hopper in PLANES:
        shape = partial(layer.block_shape, planes=planes, hopper=hopper)
        for row in of_planes(planes, hopper, _convolutions(layers[planes], shape)):
            transposed = planes == 4 and row.constants["TRANSPOSE"]
            yield _one_of_many(row, planes == 1 or transposed)


def _block_weight_gradients(layers: Mapping[int, Iterable[Layer]]) -> Iterator[Configuration]:
    for planes, hopper in PLANES:
        shape = partial(_block_grad_shape, planes, hopper)
        for row in of_planes(planes, hopper, _weight_gradients(layers[planes], shape)):
            yield _one_of_many(row, planes in (1, 2))


def _block_grad_shape(
    planes: int, hopper: bool, h_in: int, h_out: int, order: int
) -> dict[str, int]:
    """Of any order."""
    return layer.block_grad_shape(h_in, h_out, planes, hopper)


def of_layers(
    layers: Iterable[Layer], summed: Iterable[Layer], by_planes: Mapping[int, Iterable[Layer]]
) -> dict[str, tuple[Configuration, ...]]:
    """Those of the layer's kernels: for `layers` Y and dX over tiles, for `summed` their dW, and
    all three of larger graphs."""
    return {
        "flex_conv_tiles": (*_convolutions(layers, layer.tile_shape),),
        "weight_grad_tiles": (*_weight_gradients(summed, layer.tile_grad_shape),),
        "flex_conv_blocks": (*_block_convolutions(by_planes),),
        "weight_grad_blocks": (*_block_weight_gradients(by_planes),),
    }


def _one_of_many(row: Configuration, chosen: bool) -> Configuration:
    """Kernels of several planes compile for seconds each: of them `make test` takes one of two
    planes and one of four."""
    return row._replace(representative=row.representative and chosen)


def of_planes(planes: int, hopper: bool, rows: Iterable[Configuration]) -> Iterator[Configuration]:
    for row in rows:
        yield row._replace(words=f"{row.words}, to {64 * planes} nodes", hopper=hopper)
