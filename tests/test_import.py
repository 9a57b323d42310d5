"""Importing costs little, needs little, and says what it offers."""

import subprocess
import sys

import grant_fast

ABSENT = ("triton", "torch_geometric", "ogb", "rdkit", "matplotlib", "torch_sparse", "typer")

PROGRAM = """
import importlib.abc, sys, time
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import torch
start = time.process_time()  # a busy machine should not fail this
import grant_fast
from grant_fast import AtomEncoder, FlexConv, FlexGCN, GraNTSampler, PackedGraphs, score_graphs
elapsed = time.process_time() - start
x, edges = torch.randn(3, 2), torch.tensor([[0, 1], [1, 2]])
graphs = PackedGraphs.from_arrays(x, edges, torch.zeros(3).long(), torch.zeros(1))
model = FlexGCN(2, 4, 1, orders=[2, 2])
model(graphs[0]).sum().backward()
import grant_fast.kernels
print(elapsed)
"""


def test_works_and_is_quick_where_nothing_optional_is_installed():
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(absent=ABSENT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    assert float(out.stdout) < 1  # seconds on top of torch's own


def test_importing_pulls_in_nothing_heavy_on_its_own():
    heavy = (*ABSENT, "torch._dynamo", "sympy")
    program = (
        "import sys, grant_fast\n"
        "from grant_fast import FlexGCN, GraNTSampler, PackedGraphs, score_graphs\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


def test_everything_promised_is_there():
    for name in grant_fast.__all__:
        assert getattr(grant_fast, name) is not None
    assert set(grant_fast.__all__) <= set(dir(grant_fast))
