"""A batch laid out by the compiled code is the one that NumPy lays out."""

import pytest
import torch

from grant_fast import PackedGraphs, native
from grant_fast.batches.padded import PaddedBatch
from grant_fast.indexing import room as numbers

pytestmark = pytest.mark.skipif(native.build() is None, reason="the kernels were not compiled")

#: Likely sizes of graphs: molecules, tiny ones, tiles of any height, graphs of one plane to four
#: and (which bits cannot hold) of more.
SIZES = {
    "molecules": torch.arange(5, 60),
    "tiny": torch.arange(4),
    "tiles": torch.arange(33),
    "planes": torch.tensor([0, 1, 32, 33, 64, 65, 128, 129, 192, 193, 256]),
    "too large": torch.tensor([3, 3, 3, 3, 20, 257]),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_room_is_filled_as_by_numpy(build, name):
    draw = torch.Generator().manual_seed(0)
    of = SIZES[name]
    sizes = of[torch.randint(len(of), (300,), generator=draw)]
    batch = torch.repeat_interleave(torch.arange(300), sizes)
    edges = torch.zeros(2, 0, dtype=torch.int64)
    graphs = PackedGraphs.from_arrays(torch.zeros(len(batch), 1), edges, batch, num_graphs=300)
    fitted = []
    for size in (1, 2, 7, 40, 120):
        room = PaddedBatch(graphs, torch.arange(300)[graphs.bits.fits], size)
        for _ in range(20):
            positions = torch.randint(300, (2 * size,), generator=draw)[::2]
            tables = [torch.full_like(room._table, junk) for junk in (1, 2)]
            ways = room._fill, room._fill_slowly
            operands = positions, graphs.host_ptr, graphs.bits.fits
            fit, fits = (way(*operands, t) for way, t in zip(ways, tables, strict=True))
            assert fit == fits
            assert not fit or torch.equal(*tables)
            fitted.append(fit)
    assert any(fitted) and (name in ("molecules", "tiles") or not all(fitted))


def test_a_room_holds_what_there_is_room_for_and_no_more(build):
    """Rows, tiles, and graphs of one plane to four."""
    sizes = torch.tensor([31, 40, 70, 130, 2, 64, 90, 30, 200])
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    needs = [int(sizes.sum()), 2, 2, 2, 1, 1]

    def fits(rows: int, tiles: int, *larger: int) -> bool | None:
        shapes = ((9,), (9,), (10,), (9,), (1,), (tiles + 1,), (9,), (9,))
        planes = *((2, many) for many in larger), (rows // 2 + 1,)
        table = torch.empty(numbers((*shapes, *planes)), dtype=torch.int64)
        capacity = native.Capacity(9, rows, tiles, larger, len(table), 9)
        everything = torch.ones(9, dtype=torch.bool)
        return native.fill_room(capacity, torch.arange(9), ptr, everything, table)

    assert fits(*needs)
    for which in range(len(needs)):
        fewer = [need - (which == i) for i, need in enumerate(needs)]
        assert fits(*fewer) is False
