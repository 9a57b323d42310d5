"""What is installed here, what runs here, and whether it computes what it should."""

import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from .. import native
from ..batches.tiles import PLANES
from ..devices import clock
from ..errors import InputError, installed
from ..graphs import PackedGraphs
from ..nn import FlexGCN
from ..nn.paths import explain
from ..ops.dispatch import ENVIRONMENT, why_not
from ..progress import track
from ..reference import dense_flex_conv
from ..training.checkpoints import load_checkpoint, load_weights, save_checkpoint
from ..training.model import resolve_device
from ..workers import cores

_PACKAGES = {
    "grant_fast": None,
    "torch": None,
    "numpy": None,
    "safetensors": None,
    "triton": "comes with GPU builds of torch",
    "rdkit": "SMILES",
    "ogb": "SMILES and ogbg-mol*",
    "torch-geometric": "PyG models and data",
    "tensorboard": "--tensorboard",
}
_BUILDS = {
    "_cpu_v4": "compiled for AVX-512",
    "_cpu_v3": "compiled for AVX2",
    "_cpu": "compiled for any processor, slower than for AVX2 or AVX-512",
    None: native.NOT_COMPILED,
}

#: Nodes of graphs that other kernels compute than those of up to 64: of two words of bits a row and
#: more, and of none.
_OTHER_KERNELS = tuple(most + 1 for most in PLANES)


@dataclass(frozen=True)
class Check:
    """One line of the report; `ok` is None where nothing was checked, only found out."""

    ok: bool | None
    name: str
    detail: str


def examine() -> Iterator[Check]:
    """Versions, devices, and checks that compute something on every device there is; each at once,
    as a broken device may end the process."""
    yield Check(None, "python", platform.python_version())
    for package, purpose in _PACKAGES.items():
        absent = "missing" if purpose is None else f"not installed ({purpose})"
        yield Check(None, package, installed(package) or absent)
    threads = torch.get_num_threads()
    yield Check(None, "cpu", f"{threads} thread{'s' * (threads != 1)}")
    yield Check(None, "cpu kernels", _BUILDS[native.build()])
    names = ["cpu"]
    for index in range(torch.cuda.device_count()):
        names.append(f"cuda:{index}")
        yield Check(None, names[-1], torch.cuda.get_device_name(index))
    yield Check(None, "a model runs on", str(resolve_device("auto")))
    for name in names:
        remedy = "reinstall torch for this machine, or use --device cpu"
        backend = None  # what the environment says; but "triton" is said of the GPUs, if any
        if name == "cpu" and len(names) > 1 and os.environ.get(ENVIRONMENT) == "triton":
            backend = "auto"
        check = _check(f"FlexGCN on {name}", partial(_compute, name, backend), remedy)
        yield check
        if not check.ok:  # nothing else would work there
            continue
        yield from _paths(name, backend)
        if why_not(torch.empty(1, device=name)) is None:
            remedy = f"leave them off, which is the default ({ENVIRONMENT}=auto)"
            yield _check(f"Triton kernels on {name}", partial(_kernels, name), remedy)
    remedy = "set TMPDIR to a writable folder with room"
    yield _check("checkpoint written and read", _round_trip, remedy)


def compiled_kernels() -> Iterator[tuple[str, bool]]:
    """The table of every kernel on every target: a line, and whether what it says is good.

    A kernel that spills registers is right, and slower than it could be; compilers of another
    version than we develop with let some spill a few bytes.

    Compiled in as many processes as there are cores, with a progress bar on a terminal.

    Raises:
        InputError: Triton is missing, or its interpreter stands where its compiler should.
    """
    if find_spec("triton") is None:
        raise InputError(
            "triton is not installed, so there is nothing to compile with: GPU builds of torch "
            "include it, and on Linux `pip install triton` works without a GPU"
        )
    from ..kernels import inspect

    work = inspect.jobs()
    rows = inspect.compile_all(work, min(cores(), len(work)))
    yield f"{'kernel':20} {'configuration':26} target registers spills shared   limit", True
    failed = spilling = 0
    for row in track(rows, "compiling", len(work), True):
        spills = row.verdict == "spills"
        failed += row.verdict != "pass" and not spills
        spilling += spills
        numbers = f"{row.registers:9} {row.spills:6} {row.shared:6} {row.limit:7}"
        line = f"{row.kernel:20} {row.configuration:26} {row.target:6} {numbers}  {row.verdict}"
        yield line, row.verdict in ("pass", "spills")
    verdict = f"{failed} of them fail" if failed else "all of them pass"
    if spilling:
        verdict += f"; {spilling} spill registers, which is slower and not wrong"
    yield f"{len(work)} configurations compiled: {verdict}", not failed


def _paths(device: str, backend: str | None) -> Iterator[Check]:
    """Who computes the layers of a usual model on `device`."""
    model = FlexGCN(3, [27, 18, 18], 1, orders=[4, 3, 2, 2], backend=backend).to(device)
    lines = explain(model, _two_graphs().to(device).batch([0, 1]))
    for i, line in enumerate(lines):
        yield Check(None, f"usual layers on {device}" if not i else "", line)


def _check(name: str, run: Callable[[], str], remedy: str) -> Check:
    try:
        return Check(True, name, run())
    except InputError as error:  # says what to do itself
        return Check(False, name, str(error))
    except Exception as error:  # whatever goes wrong is what the user wants to hear about
        return Check(False, name, f"{' '.join(str(error).split())}; {remedy}")


def _kernels(device: str) -> str:
    """`_compute` by the Triton kernels, and on a GPU how much faster they make a training step."""
    found = _compute(device, "triton")
    for nodes in _OTHER_KERNELS:
        _compute(device, "triton", _rings(2, nodes, 3))
    if torch.device(device).type != "cuda":  # interpreted: no speed to speak of
        return found
    return f"{found}; {ENVIRONMENT}=triton makes a training step {speedup(device):.2f}× as fast"


def speedup(device: str, graphs: int = 2000, rounds: int = 20) -> float:
    """A training step's time with PyTorch's operators over that with the Triton kernels.

    Medians of `rounds` turns each, on rings of 25 nodes, of which a batch has a quarter.
    """
    packed = _rings(graphs).to(device)
    models = {
        name: FlexGCN(9, [27, 27], 1, orders=[3, 3, 3], backend=name).to(device)
        for name in ("torch", "triton")
    }
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(3 + rounds):  # the first ones compile
        for name, model in models.items():
            model.zero_grad()
            began = clock(torch.device(device))
            model(packed.batch(torch.arange(turn % 4, graphs, 4))).square().mean().backward()
            times[name].append(clock(torch.device(device)) - began)
    return median(times["torch"][3:]) / median(times["triton"][3:])


def _rings(count: int, nodes: int = 25, features: int = 9) -> PackedGraphs:
    """Rings, each edge in both directions."""
    node = torch.arange(nodes * count)
    graph = node // nodes
    after = nodes * graph + (node % nodes + 1) % nodes
    edges = torch.stack([torch.cat([node, after]), torch.cat([after, node])])
    x = torch.rand(len(node), features)
    return PackedGraphs.from_arrays(x, edges, graph, num_graphs=count)


def _compute(device: str, backend: str | None = None, graphs: PackedGraphs | None = None) -> str:
    """Outputs and gradients of a small FlexGCN against the plain formula in float64, over two
    graphs: `_two_graphs`, if none are given."""
    graphs = (graphs or _two_graphs()).to(device)
    model = _small_model(backend=backend).to(device)
    batch = graphs.batch([1, 0])
    out = model(batch)
    out.square().sum().backward()
    weights = {k: v.detach().cpu().double().requires_grad_() for k, v in model.named_parameters()}
    expected = _plain_formula(weights, batch.x, batch.edge_index, batch.batch)
    expected.square().sum().backward()
    error = _relative_error(out.detach(), expected.detach())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        truth = weights[name].grad
        assert truth is not None
        error = max(error, _relative_error(parameter.grad, truth))
    if not error < 1e-4:
        raise ArithmeticError(f"values and gradients are off by {error:.1e}")
    return f"values and gradients within {error:.0e} of float64"


def _plain_formula(
    weights: dict[str, Tensor], x: Tensor, edge_index: Tensor, batch: Tensor
) -> Tensor:
    """mean over each graph of Σ_k Â^k ReLU(Σ_k Â^k X W_k + b) V_k + c, all matrices dense."""
    source, target = edge_index.cpu()
    h, batch = x.cpu().double(), batch.cpu()
    a = torch.zeros(len(h), len(h), dtype=torch.float64)
    a[target, source] = 1
    scale = a.sum(1).clamp(min=1).rsqrt() * (a.sum(1) > 0)
    a = scale[:, None] * a * scale
    for layer in range(2):
        weight, bias = weights[f"convs.{layer}.weight"], weights[f"convs.{layer}.bias"]
        h = dense_flex_conv(h, weight, bias, a)
        h = h.relu() if layer == 0 else h
    return torch.stack([h[batch == graph].mean(0) for graph in batch.unique()])


def _relative_error(value: Tensor, truth: Tensor) -> float:
    return float((value.cpu().double() - truth).abs().max() / truth.abs().max().clamp(min=1e-9))


def _round_trip() -> str:
    model, other = _small_model(), _small_model(seed=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "check.pt"
        save_checkpoint(path, {"model": model.state_dict()})
        load_weights(other, load_checkpoint(path)["model"], path)
    same = all(torch.equal(v, other.state_dict()[k]) for k, v in model.state_dict().items())
    if not same:
        raise OSError("the weights that came back are not those that were written")
    return "the same weights came back"


def _small_model(seed: int = 0, backend: str | None = None) -> FlexGCN:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return FlexGCN(3, 4, 2, orders=[3, 2], backend=backend)


def _two_graphs() -> PackedGraphs:
    """A directed ring of four nodes with a chord, and a single edge."""
    edges = torch.tensor([[0, 1, 2, 3, 0, 4], [1, 2, 3, 0, 2, 5]])
    x = torch.linspace(-1, 1, 18).reshape(6, 3)
    return PackedGraphs.from_arrays(x, edges, torch.tensor([0, 0, 0, 0, 1, 1]), num_graphs=2)
