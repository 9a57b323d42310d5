"""The emulated GPU computes what the PTX says, and notices what no result shows."""

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.emulated

#: As `launch.options` says it: triton 3.9 warns where nobody says whether products may be fused.
FUSED = {"enable_fp_fusion": True}


@pytest.fixture
def noticed() -> Callable[[], list[str]]:
    """Empties what was noticed until now."""
    from tests.emulator.device import HAZARDS

    def look() -> list[str]:
        out = sorted(text.split(": ", 1)[1] for text in HAZARDS)
        HAZARDS.clear()
        return out

    look()
    return look


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


@triton.jit
def multiply(
    p_a, p_b, p_c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TURNED: tl.constexpr
):
    o_m, o_n, o_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    b_a = tl.load(p_a + o_m[:, None] * K + o_k[None, :])
    if TURNED:
        b_b = tl.trans(tl.load(p_b + o_n[:, None] * K + o_k[None, :]))
    else:
        b_b = tl.load(p_b + o_k[:, None] * N + o_n[None, :])
    b_c = tl.dot(b_a, b_b, input_precision="tf32")
    tl.store(p_c + o_m[:, None] * N + o_n[None, :], b_c)


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(16, 16, 16), (64, 32, 64)], ids=str)
def test_matrices_are_multiplied(shape, dtype, warps, turned, noticed):
    m, n, k = shape
    a, b, c = numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype), torch.empty(m, n)
    multiply[1,](a, b.T.contiguous() if turned else b, c, m, n, k, turned, num_warps=warps, **FUSED)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=2e-3, atol=2e-2)
    assert not noticed()


@pytest.mark.parametrize("warps", [1, 4])
def test_sums_of_matrix_units_are_cut_not_rounded(warps):
    a, b, c = torch.ones(64, 16), torch.zeros(16, 16), torch.empty(64, 16)
    b[0], b[1] = 1.0, 2**-24 + 2**-26  # the next number above 1 is 2^-23 away
    b[:2, 1] *= -1
    multiply[1,](a.bfloat16(), b.bfloat16(), c, 64, 16, 16, False, num_warps=warps, **FUSED)
    assert c[0, 0] == 1
    assert c[0, 1] == -1


@triton.jit
def count_up(p_n, p_out, LANES: tl.constexpr):
    o = tl.arange(0, LANES)
    n = tl.load(p_n + tl.program_id(0))
    b_sum = tl.zeros([LANES], tl.int32)
    for i in range(n):
        if i % 2 == 0:
            b_sum += o * i
    tl.store(p_out + tl.program_id(0) * LANES + o, b_sum)


def test_programs_that_take_different_ways_meet_again(noticed):
    n, out = torch.tensor([0, 3, 100, 1, 8], dtype=torch.int32), torch.empty(5, 64).int()
    count_up[5,](n, out, 64, num_warps=2, **FUSED)
    even = torch.tensor([sum(range(0, int(end), 2)) for end in n])
    assert torch.equal(out, (even[:, None] * torch.arange(64)).int())
    assert not noticed()


@triton.jit
def turn_round(p_x, p_y, SIZE: tl.constexpr, BARRIER: tl.constexpr):
    o = tl.arange(0, SIZE)
    tl.store(p_x + o, o)
    if BARRIER:
        tl.debug_barrier()
    tl.store(p_y + o, tl.load(p_x + SIZE - 1 - o))


def test_a_race_between_warps_is_noticed_and_none_behind_a_barrier(noticed):
    x, y = torch.zeros(256).int(), torch.zeros(256).int()
    turn_round[1,](x, y, 256, True, num_warps=4, **FUSED)
    assert y.tolist() == list(range(256))[::-1]
    assert not noticed()
    turn_round[1,](x, y, 256, False, num_warps=4, **FUSED)
    assert noticed() == ["a warp reads what another wrote in global memory, unsynchronised"]


@triton.jit
def stamp(p_x, SIZE: tl.constexpr):
    tl.store(p_x + tl.arange(0, SIZE), tl.program_id(0))


def test_a_race_between_programs_is_noticed(noticed):
    stamp[2,](torch.zeros(64).int(), 64, num_warps=1, **FUSED)
    assert "threads store different numbers to one place at once" in noticed()


@triton.jit
def copy(p_x, p_y, size, SIZE: tl.constexpr):
    o = tl.arange(0, SIZE)
    tl.store(p_y + o, tl.load(p_x + o, mask=o < size), mask=o < size)


def test_an_access_out_of_bounds_is_a_fault():
    from tests.emulator.memory import Fault

    x, y = numbers(200), numbers(201)
    copy[1,](x, y, 200, 256, **FUSED)
    assert torch.equal(x, y[:200])
    with pytest.raises(Fault, match=r"copy: ld.global.*threads out of the bounds of every tensor"):
        copy[1,](x, y, 201, 256, **FUSED)
    with pytest.raises(Fault, match=r"copy: st.global.*threads out of the bounds of every tensor"):
        copy[1,](y, x, 201, 256, **FUSED)
