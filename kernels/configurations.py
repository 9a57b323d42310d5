"""Every configuration in which dispatch may launch a kernel: what the table of `inspect.py` holds.

A new kernel, or a new way to specialise one, is entered here; of a layer's kernels, in
`layer_configurations.py`.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any

from ..batches.tiles import SLOTS, TILE
from . import (
    blocks,
    csr,
    fused,
    hops,
    kinds,
    layer,
    norm,
    readout,
    score,
    select,
    tables,
    tail,
    weights,
    wide,
)
from .kernel import Configuration, Kernel
from .layer_configurations import (
    BLOCK_LAYERS,
    LAYERS,
    PLANES,
    SUMMED_LAYERS,
    Layer,
    Shape,
    of_layers,
    of_planes,
)

#: What a hop of a wide layer is made of: its columns (one block of 16 or of 32, whole or not), the
#: dtype, all or nothing of norm, bias and ReLU. It runs forwards and backwards.
_COLUMNS = (
    *product((16, 32, 44), ("fp32",), (True,)),
    *product((32,), ("bf16", "fp16"), (True,)),
    (32, "fp32", False),
)

#: The same of larger graphs by their planes.
_BLOCK_COLUMNS = {
    1: (*product((16, 32), ("fp32",), (True,)), (32, "fp16", True), (32, "fp32", False)),
    **dict.fromkeys((2, 3, 4), ((44, "fp32", True),)),  # the most registers
}


def _block_hops(horner: bool) -> Iterator[Configuration]:
    for planes, hopper in PLANES:
        shape = partial(wide.block_shape, planes=planes, hopper=hopper)
        yield from of_planes(planes, hopper, _hops(shape, horner, _BLOCK_COLUMNS[planes]))


def _hops(
    shape: Shape, horner: bool, columns: Iterable[tuple[int, str, bool]] = _COLUMNS
) -> Iterator[Configuration]:
    for (width, dtype, full), transpose in product(columns, (False, True)):
        if transpose and not (full and dtype == "fp32"):
            continue
        constants = {"WIDTH": width, "NORMALIZE": full, "TRANSPOSE": transpose} | shape(width)
        constants |= {"Y_STRIDE" if horner else "X_STRIDE": 4 * width}
        if horner:
            constants |= dict.fromkeys(("BIAS", "RELU"), full and not transpose)
        words = f"{'Âᵀ' if transpose else 'Â'} {width} {dtype}{'' if full else ' plain'}"
        usual = (width, dtype, full, transpose) == (32, "fp32", True, False)
        yield Configuration(words, constants, dtype, usual)


#: Widths of gathered rows: one for each block of columns. 9, 27 and 300 fill theirs only partly,
#: which needs more registers.
_ROWS = (
    *product((1, 2, 4, 8, 9, 27, 64, 300), ("fp32",)),
    *product((64,), ("bf16", "fp16")),
)
_USUAL_ROW = (64, "fp32")


def _rows() -> Iterator[Configuration]:
    for (width, dtype), full in (*product(_ROWS, (True,)), (_USUAL_ROW, False)):
        strides = dict.fromkeys(("Z_STRIDE", "TERM_STRIDE", "OUT_STRIDE"), width)
        flags = dict.fromkeys(("TERM", "BIAS", "RELU"), full)
        words = f"{width} {dtype}{'' if full else ' plain'}"
        constants = {"WIDTH": width} | strides | flags | csr.spmm_shape(width)
        yield Configuration(words, constants, dtype, full and (width, dtype) == _USUAL_ROW)


def _value_gradients() -> Iterator[Configuration]:
    for (width, dtype), add in (*product(_ROWS, (True,)), (_USUAL_ROW, False)):
        strides = dict.fromkeys(("DZ_STRIDE", "Z_STRIDE"), width)
        constants = {"WIDTH": width, "ADD": add} | strides | csr.value_grad_shape(width)
        words = f"{width} {dtype}{' added' if add else ''}"
        yield Configuration(words, constants, dtype, add and (width, dtype) == _USUAL_ROW)


def _readouts() -> Iterator[Configuration]:
    sizes = [*product(_ROWS, (5,)), *product(((27, "fp32"), (64, "bf16")), (1,))]
    sizes += product(product((5,), ("fp32", "fp16")), (1, 5, 8))  # spills more than others
    for (width, dtype), order in sizes:
        constants = {"ORDER": order, "WIDTH": width} | readout.readout_shape(width)
        usual = order == 5 and (width, dtype) in ((27, "fp32"), (5, "fp32"))
        yield Configuration(f"κ={order} {width} {dtype}", constants, dtype, usual)


def _kinds() -> Iterator[Configuration]:
    for (width, dtype), many in product(_ROWS, (64, 65)):
        constants = {"WIDTH": width} | kinds.sum_shape(width, many)
        words = f"{width} {dtype}, {constants['KINDS']} kinds"
        yield Configuration(words, constants, dtype, (width, dtype) == (9, "fp32"))


#: Widths of a batch that is normalised: of one block of columns, full or not, and of several.
_NORMED = (*product((1, 9, 27, 64, 300), ("fp32",)), (27, "bf16"), (64, "fp16"))


def _norms(*, acts: bool) -> Iterator[Configuration]:
    usual = (27, "fp32")
    ways = (("", True, False), (" drops", True, True), (" plain", False, False))
    for width, dtype in _NORMED:
        for words, relu, drops in ways if acts else ways[:1]:
            constants = {"WIDTH": width} | norm.norm_shape(width)
            constants |= {"RELU": relu, "DROPS": drops} if acts else {}
            representative = (width, dtype) == usual and words != " plain"
            yield Configuration(f"{width} {dtype}{words}", constants, dtype, representative)


def _merges() -> Iterator[Configuration]:
    for width in (1, 27, 300):
        constants = {"WIDTH": width} | norm.merge_shape()
        yield Configuration(f"{width}", constants, "fp32", width == 27)


#: Networks that one kernel scores, by widths and orders: the usual ones, and those with most blocks
#: of columns, most hops, most outputs and most layers that `teaching.fused` lets through.
_NETWORKS = (
    ((9, 27, 18, 18, 1), (4, 3, 2, 2)),
    ((64, 32, 64), (5, 5)),
    ((32, 32, 32, 32, 32, 64), (5, 5, 5, 5, 5)),
)


def _networks() -> Iterator[Configuration]:
    rows = [
        *product(_NETWORKS, (True,), (False,)),
        *product(_NETWORKS[:2], (False,), (False,)),
        *product(_NETWORKS[:2], (True,), (True,)),
    ]
    for (widths, orders), pool, tf32 in rows:
        constants: dict[str, Any] = {**score.constants(widths, orders), "POOL": pool, "MEAN": True}
        constants |= {"NORMALIZE": True, "CODED": pool, "CLASSES": not pool, "SIGMOID": pool}
        constants |= {"RAW": False, "PREDICT": True, "ROWS": TILE, "GRAPHS": score.GRAPHS}
        constants["PARTS"] = 2 if tf32 else 3
        words = f"{'→'.join(map(str, widths))} {'pooled' if pool else 'nodes'}"
        usual = pool and widths[0] == 9 and not tf32
        yield Configuration(words + " TF32" * tf32, constants, "fp32", usual, tf32)


def _tails() -> Iterator[Configuration]:
    shapes = ((2, 64, 1), (2, 300, 12), (5, 128, 12), (1, 512, 64))
    rows = [
        *product(shapes, ("fp32",), (True, False)),
        *product(((5, 128, 12),), ("bf16", "fp16"), (True,)),
    ]
    for (order, h_in, h_out), dtype, pool in rows:
        constants: dict[str, Any] = {"ORDER": order, "H_IN": h_in, "H_OUT": h_out}
        constants |= tail.tail_shape(h_in, h_out) | {"POOL": pool, "MEAN": True, "RAW": False}
        constants |= {"CLASSES": not pool, "SIGMOID": pool}
        words = f"κ={order} {h_in}→{h_out} {dtype} {'pooled' if pool else 'nodes'}"
        yield Configuration(words, constants, dtype, (h_in, dtype, pool) == (300, "fp32", True))


def _splits() -> Iterator[Configuration]:
    sizes = ((9, 27, "fp32"), (27, 18, "fp32"), (27, 9, "bf16"), (32, 64, "fp16"))
    ways = ("", " by lanes", " by both")
    for (h_in, h_out, dtype), way, transpose in product(sizes, ways, (False, True)):
        parts = Layer(3, h_in, h_out, dtype).parts
        constants = {"ORDER": 3, "H_IN": h_in, "H_OUT": h_out, "PARTS": parts}
        constants |= {"TRANSPOSE": transpose, "LANES": way != "", "ROWS": way != " by lanes"}
        constants |= layer.columns_shape(h_in, h_out)
        words = f"κ=3 {h_in}→{h_out} {dtype}{way}{' Wᵀ' if transpose else ''}"
        usual = (h_in, dtype, way) == (27, "fp32", " by both")
        yield Configuration(words, constants, dtype, usual)


def _layout() -> Iterator[Configuration]:
    yield Configuration("all", {"ROWS": TILE, "SLOTS": SLOTS}, "fp32", True)


_CHOICE = dict.fromkeys(("p_count", "p_found", "p_block"), "*i32") | {
    "p_ends": "*i64",
    "p_out": "*i64",
}


def _choice(*, trailing: bool = False, bins: bool = False) -> Iterator[Configuration]:
    sizes = {"COLUMNS": select.COLUMNS} if bins else {"BLOCK": select.BLOCK}
    if not trailing:
        yield Configuration("all", sizes, "fp32", True)
        return
    for which in (False, True):
        name = "trailing" if which else "leading"
        yield Configuration(name, sizes | {"TRAILING": which}, "fp32", which)


_PARTS = {"p_parts": "*bf16"}
_SPLITS = dict.fromkeys(("p_lanes", "p_rows"), "*bf16")
_TILE_ROWS = {
    **dict.fromkeys(("p_word", "p_row", "p_node", "p_code"), "*i32"),
    **dict.fromkeys(("p_scale", "p_partial"), "*fp32"),  # whatever the features are
}
_LAYOUT = {
    **dict.fromkeys(("p_word", "p_rows", "p_nodes"), "*i32"),
    **dict.fromkeys(("p_bits", "p_ptr", "p_tile", "p_graph", "p_row"), "*i64"),
}
_GRAPHS = {
    **dict.fromkeys(("p_ptr", "p_bits", "p_tile", "p_graph", "p_row"), "*i64"),
    "p_code": "*i32",
    **dict.fromkeys(("p_scale", "p_partial"), "*fp32"),  # whatever the features are
}

_CSR = {"p_rowptr": "*i32", "p_col": "*i32", "p_value": "*fp32"}
_SEGMENTS = {**dict.fromkeys(("p_ptr", "p_start", "p_graph"), "*i64"), "p_weight": "*fp32"}

_KINDS = {"p_kind": "*i32", "p_partial": "*fp32"}

_NORM = dict.fromkeys(("p_partial", "p_stats", "p_weight", "p_bias", "p_sums"), "*fp32")
_NORM |= {"p_count": "*i64", "p_keep": "*u8", "scale": "fp32"}

_NETWORK_TYPES = {"p_count": "*i32"} | _PARTS
_TAIL_TYPES = {
    **dict.fromkeys(("p_weight", "p_bias", "p_pool", "p_y", "p_score"), "*fp32"),
    **dict.fromkeys(("p_row", "p_graph", "p_ptr"), "*i64"),
    "p_count": "*i32",
}

_LAYER = {"p_code": "CODED", "p_mask": "RELU_IN", "p_bias": "BIAS"}
_SPLIT = {"p_parts": "PARTS"}
_SPLIT_WAYS = {"p_lanes": "LANES", "p_rows": "ROWS"}
_WEIGHTS = {"p_code": "CODED", "p_y": "RELU"}
_DROPS = {"p_keep": "DROPS"}
_BIAS, _SCALE = {"p_bias": "BIAS"}, {"p_scale": "NORMALIZE"}
_NETWORK = {"p_code": "CODED", "p_pool": "POOL", "p_pred": "PREDICT"} | _SPLIT
_TAIL = dict.fromkeys(("p_weight", "p_bias", "p_pool"), "POOL")

_OF_LAYERS = of_layers(LAYERS, SUMMED_LAYERS, BLOCK_LAYERS)

#: Every kernel that dispatch can choose.
KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(tables.lay_out_tiles, (*_layout(),), _LAYOUT),
        Kernel(weights.split_weight, (*_splits(),), _SPLITS, optional=_SPLIT_WAYS),
        Kernel(
            fused.flex_conv_tiles,
            _OF_LAYERS["flex_conv_tiles"],
            _TILE_ROWS | _PARTS,
            optional=_LAYER | _SPLIT,
        ),
        Kernel(
            fused.weight_grad_tiles,
            _OF_LAYERS["weight_grad_tiles"],
            _TILE_ROWS,
            optional=_WEIGHTS,
        ),
        Kernel(
            blocks.flex_conv_blocks,
            _OF_LAYERS["flex_conv_blocks"],
            _GRAPHS | _PARTS,
            optional=_LAYER | _SPLIT | _SCALE,
        ),
        Kernel(
            blocks.weight_grad_blocks,
            _OF_LAYERS["weight_grad_blocks"],
            _GRAPHS,
            optional=_WEIGHTS | _SCALE,
        ),
        Kernel(hops.horner_tiles, (*_hops(wide.tile_shape, True),), _TILE_ROWS, True, _BIAS),
        Kernel(hops.powers_tiles, (*_hops(wide.tile_shape, False),), _TILE_ROWS, True),
        Kernel(hops.horner_blocks, (*_block_hops(True),), _GRAPHS, True, _BIAS | _SCALE),
        Kernel(hops.powers_blocks, (*_block_hops(False),), _GRAPHS, True, _SCALE),
        Kernel(csr.spmm_rows, (*_rows(),), _CSR, optional=_BIAS | {"p_term": "TERM"}),
        Kernel(csr.value_grad_rows, (*_value_gradients(),), _CSR | {"p_out": "*fp32"}),
        Kernel(readout.readout_rows, (*_readouts(),), _SEGMENTS),
        Kernel(readout.readout_grad_rows, (*_readouts(),), _SEGMENTS),
        Kernel(kinds.sum_by_kind, (*_kinds(),), _KINDS, True),
        Kernel(norm.norm_moments, (*_norms(acts=False),), _NORM),
        Kernel(norm.merge_moments, (*_merges(),), _NORM | {"eps": "fp32"}),
        Kernel(norm.norm_rows, (*_norms(acts=True),), _NORM, optional=_DROPS),
        Kernel(norm.norm_grad_sums, (*_norms(acts=True),), _NORM, optional=_DROPS),
        Kernel(norm.norm_grad_rows, (*_norms(acts=True),), _NORM, optional=_DROPS),
        Kernel(score.score_tiles, (*_networks(),), _GRAPHS | _NETWORK_TYPES, optional=_NETWORK),
        Kernel(tail.score_rows, (*_tails(),), _TAIL_TYPES, optional=_TAIL),
        Kernel(select.count_digits, (*_choice(trailing=True),), _CHOICE),
        Kernel(select.find_digit, (*_choice(trailing=True, bins=True),), _CHOICE),
        Kernel(select.count_picked, (*_choice(),), _CHOICE),
        Kernel(select.write_picked, (*_choice(),), _CHOICE),
    )
}
