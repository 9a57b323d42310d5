"""Importing costs little, needs little, and says what it offers."""

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import grant_fast
from grant_fast import teaching

ROOT = Path(grant_fast.__file__).parents[1]

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


def printed(program: str, *arguments: str) -> str:
    """What a Python of its own prints, started in the checkout."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_works_and_is_quick_where_nothing_optional_is_installed():
    assert float(printed(PROGRAM.format(absent=ABSENT))) < 1  # seconds on top of torch's own


def test_importing_pulls_in_nothing_heavy_on_its_own():
    heavy = (*ABSENT, "grant_fast.kernels", "torch._dynamo", "sympy")
    program = (
        "import sys, grant_fast\n"
        "from grant_fast import FlexGCN, GraNTSampler, PackedGraphs, score_graphs\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    assert printed(program) == "[]"


TRAIN = """
import sys
import torch
from grant_fast import PackedGraphs, load_dataset, load_predictor, train
graphs = PackedGraphs.from_smiles(["C", "CC", "CCO", "c1ccccc1", "CN", "C=O"] * 4)
graphs.y = torch.arange(24.0)[:, None]
train(load_dataset(graphs), sys.argv[1], epochs=2, hidden_channels=4, batch_size=8)
load_predictor(sys.argv[1])(graphs)
print("torch._dynamo" in sys.modules)
"""


def test_training_and_predicting_import_no_compiler(tmp_path):
    assert printed(TRAIN, str(tmp_path)) == "False"


def test_a_process_that_helps_to_read_molecules_imports_no_torch():
    program = (
        "import sys, grant_fast.cli.entry, grant_fast.data.sdf\n"
        "from grant_fast.data.logp import logp_and_scaffold\n"
        "from grant_fast.data.parsing import read_chunk\n"
        "read_chunk(True, logp_and_scaffold, 0, ['c1ccccc1CN'])\n"
        "print('torch' in sys.modules)"
    )
    assert printed(program) == "False"


def test_help_names_everything_that_is_promised():
    said = set(re.findall(r"`(\w+)`", grant_fast.__doc__))
    assert set(grant_fast.__all__) - {"__version__"} == said - {"TAGConv"}


def test_everything_promised_is_there():
    for name in grant_fast.__all__:
        assert getattr(grant_fast, name) is not None
    assert set(grant_fast.__all__) <= set(dir(grant_fast))


def rooms() -> dict[str, int]:
    """The row of CONTRIBUTING's table that each module, or folder of modules, stands in."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| path |")[1].split("\n\n")[0]
    found = {}
    for row, line in enumerate(table.splitlines()[2:]):
        for name in re.findall(r"`([\w/]+)(?:\.py|/)`", line.split("|")[1]):
            found[name.removeprefix("grant_fast/")] = row
    return found


def imported(path: Path, package: str) -> set[str]:
    """The rooms that a module imports when it is imported itself."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            inside = package.split(".")[: len(package.split(".")) - node.level + 1][1:]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {".".join([*inside, str(name)]).split(".")[0] for name in names}
    return found


def test_what_help_refers_to_can_be_imported():
    """Where a docstring names a function of another module, it does so by a path that imports."""
    promised = [getattr(home, name) for home in (grant_fast, teaching) for name in home.__all__]
    members = [
        member for each in promised if isinstance(each, type) for member in vars(each).values()
    ]
    texts = [inspect.getdoc(each) or "" for each in (*promised, *members)]
    modules = {path.stem for path in Path(teaching.__file__).parent.glob("*.py")}
    for path in re.findall(r"`([a-z_]+\.[\w.]+)`", "\n".join(texts)):
        assert path.split(".")[0] not in modules, f"`{path}` cannot be imported as it stands"
        if path.startswith("grant_fast."):
            assert pkgutil.resolve_name(path) is not None


def test_each_module_has_a_room_and_imports_none_below_its_own():
    row = rooms()
    assert len(row) > 18
    modules = [
        (path, ".".join(path.relative_to(ROOT).parts[:-1]))
        for path in (ROOT / "grant_fast").rglob("*.py")
    ]
    modules += [(path, "grant_fast.kernels") for path in (ROOT / "kernels").glob("*.py")]
    for path, package in modules:
        room = package.partition(".")[2].partition(".")[0] or path.stem
        if room != "__init__":
            below = {name for name in imported(path, package) if row[name] > row[room]}
            assert not below, f"{path.relative_to(ROOT)} imports {below}"


def test_the_device_command_needs_no_terminal():
    """A machine with a GPU may have PyTorch and pytest, and little else."""
    program = (
        "import sys, benchmarks.device, benchmarks.test_suite, benchmarks.runs, benchmarks.scores\n"
        "print([m for m in ('rich', 'typer', 'matplotlib', 'torch_geometric') if m in sys.modules])"
    )
    assert printed(program) == "[]"
