"""The checks on a device: what is right passes, what is off is seen."""

import copy
from unittest.mock import Mock

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from benchmarks import awkward, checks, network_checks, scoring_checks
from benchmarks.measure import WrongAnswer
from grant_fast import InputError, PackedGraphs, Task, ops
from grant_fast.batches import tiles
from grant_fast.kernels import configurations
from grant_fast.teaching import fused
from tests import emulator

pytestmark = pytest.mark.filterwarnings("ignore")  # PyG's own, at its import
CPU = torch.device("cpu")

KINDS = [{}, {"relu": True}, {"weighted": True}, {"symmetric": False}, {"repeated": True}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_check_passes_what_is_right_and_not_what_is_off(kind, monkeypatch):
    check = checks.Layer("torch", 9, 7, 3, **kind)
    assert max(checks.run(check, CPU).values()) < 1e-5
    right = ops.flex_conv

    def off(*args, **kwargs):
        return right(*args, **kwargs) * 1.0001

    monkeypatch.setattr(ops, "flex_conv", off)
    with pytest.raises(WrongAnswer, match="Y is off"):
        checks.run(check, CPU)


def test_a_check_wants_two_runs_to_be_bit_equal(monkeypatch):
    right, calls = ops.flex_conv, iter(range(2))

    def drifting(*args, **kwargs):
        return right(*args, **kwargs) * (1 + 1e-6 * next(calls))

    monkeypatch.setattr(ops, "flex_conv", drifting)
    with pytest.raises(WrongAnswer, match="Y differs between two runs"):
        checks.run(checks.Layer("triton", 9, 7, 3), CPU)


def test_a_check_is_not_taken_only_where_the_kernels_cannot_run(monkeypatch):
    check = checks.Layer("triton", 9, 7, 3)
    monkeypatch.setattr(ops, "flex_conv", Mock(side_effect=InputError("x is on another device")))
    with pytest.raises(InputError, match="another device"):
        checks.run(check, CPU)
    monkeypatch.delenv("TRITON_INTERPRET")
    assert checks.run(check, CPU) == {"not taken": "x is on the cpu, not on a GPU"}


def test_a_check_sees_scores_that_had_to_be_computed_again(monkeypatch):
    """Where the one kernel gives NaN, `score_graphs` goes layer by layer."""
    right = fused.score

    def wrong(*args, **kwargs):
        scores, *rest = right(*args, **kwargs)
        return scores.fill_(torch.nan), *rest

    monkeypatch.setattr(awkward, "SIZES", (0, 1, 17, 40))
    monkeypatch.setattr(fused, "score", wrong)
    with pytest.raises(WrongAnswer, match="scores of the one kernel"):
        checks.run(scoring_checks.Scores("triton", Task("binary"), (9, 8)), CPU)


def test_checks_have_names_of_their_own():
    names = [check.name for check in checks.checks()]
    assert len(set(names)) == len(names)


#: A case of each kind, wide and narrow enough that together they start all kernels.
KERNELS = [
    checks.Layer("triton", 27, 18, 3),
    checks.Layer("triton", 70, 70, 2),
    scoring_checks.Readout("triton", 9, 3, True),
    scoring_checks.Norm("triton", 700, 27),
    scoring_checks.Kinds("triton", 300, 70, 9),
    scoring_checks.EdgeGradients("triton", 5, 9, 2),
    scoring_checks.Scores("triton", Task("binary"), (9, 8), atoms=True),
    scoring_checks.Scores("triton", Task("multiclass", "node", 4), (34, 8)),
    scoring_checks.Selection("triton", 1100),
]


def test_the_checks_run_every_kernel_and_find_it_right(monkeypatch):
    kind = JITFunction if emulator.TARGET else InterpretedFunction
    launched, run = set(), kind.run

    def noted(function, *operands, **settings):
        name = function.fn.__name__
        given = [arg for arg in function.arg_names if arg not in settings]
        absent = {arg for arg, operand in zip(given, operands, strict=True) if operand is None}
        assert absent == configurations.KERNELS[name].absent(settings), name
        launched.add(name)
        return run(function, *operands, **settings)

    monkeypatch.setattr(kind, "run", noted)
    monkeypatch.setattr(awkward, "SIZES", (0, 1, 17, 40))
    for check in KERNELS:
        assert max(checks.run(check, CPU).values()) <= check.tolerance
    interpreted = set() if emulator.TARGET else {"split_weight"}  # for NVIDIA's matrix units alone
    assert launched == set(configurations.KERNELS) - interpreted
    kinds = {(type(check), check.backend) for check in checks.checks()}
    assert kinds >= {(type(check), check.backend) for check in KERNELS}


BEHIND = [*scoring_checks.of("torch"), *network_checks.of("torch")]


def test_a_network_is_checked_with_room_for_its_batch(monkeypatch):
    monkeypatch.setattr(awkward, "SIZES", (0, 1, 17, 40))
    check = network_checks.Network("triton", "ogbg-molhiv")
    errors = checks.run(check, CPU)
    assert list(errors) == ["outputs", "scores", "gradient", "gradient with room"]
    assert max(errors.values()) <= check.tolerance


def test_a_room_has_no_graphs_that_a_device_does_not_keep_as_bits(monkeypatch):
    move = PackedGraphs.to

    def to(self, device=None, dtype=None):
        graphs = copy.copy(move(self, device, dtype))
        vars(graphs).pop("bits", None)
        monkeypatch.setattr(tiles, "most_nodes", lambda _: 32)  # there; 256 on a CPU
        return graphs

    monkeypatch.setattr(PackedGraphs, "to", to)
    monkeypatch.setattr(awkward, "SIZES", (0, 1, 17, 40))
    check = network_checks.Network("triton", "ogbg-molhiv")
    errors = checks.run(check, CPU)
    assert "gradient with room" in errors
    assert max(errors.values()) <= check.tolerance


@pytest.mark.parametrize("check", BEHIND, ids=lambda check: check.name)
def test_a_check_passes_and_sees_what_is_off_behind_the_layers(check):
    assert max(checks.run(check, CPU).values()) <= check.tolerance
    prepare = check.prepare

    class Off:
        name, backend, tolerance = check.name, check.backend, check.tolerance

        def prepare(self, device):
            once, want = prepare(device)
            return lambda: [1.01 * tensor for tensor in once()], want

    with pytest.raises(WrongAnswer):
        checks.run(Off(), CPU)
