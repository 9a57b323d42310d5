"""A training step and a scoring pass beside PyG on the CPU: `python -m benchmarks.cpu`.

Batches are shuffled and assembled inside the timing on both sides. Training is forward, backward
and an Adam step; scoring is inference in evaluation mode. Ours runs on a packed dataset; on the
batches of PyG's loader; and there as PyG's own network, with `FlexConv` for each `TAGConv`. The
sides take turns of a few batches, so a machine that slows down slows all; medians and ratios of
medians are printed.
"""

import argparse
import copy
import json
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grant_fast import FlexConv, FlexGCN, PackedGraphs, Task, native
from grant_fast.data.load import load_dataset
from grant_fast.files import atomic_write_text
from grant_fast.nn.evaluating import evaluating
from grant_fast.teaching import loss

from .data import HIV
from .gradients import TOLERANCE as GRADIENT_TOLERANCE
from .gradients import in_training
from .machine import cpu_name, warn_without_kernels
from .measure import must_be_right, relative_errors
from .networks import forever, inference, shuffled, training
from .peers import pyg
from .report import PYGS, WAYS
from .stages import stages, table
from .timing import interleaved, spread
from .work import TOLERANCE


@dataclass(frozen=True)
class Network:
    """One row of the table: a network, and how many graphs it takes at a time."""

    name: str
    batch_size: int
    in_channels: int
    hidden_channels: tuple[int, ...]
    orders: tuple[int, ...]
    out_channels: int = 1
    norm: str | None = "batch_norm"
    dropout: float = 0.27
    pool: str | None = "mean"

    def models(self, atoms: bool) -> tuple[FlexGCN, pyg.TAGNet]:
        args = (self.in_channels, self.hidden_channels, self.out_channels, self.orders)
        ours = FlexGCN(
            *args,
            norm=self.norm,
            dropout=self.dropout,
            pool=self.pool,
            encoder="atom" if atoms else None,
        )
        theirs = pyg.TAGNet(
            *args, self.norm is not None, self.dropout, self.pool is not None, atoms
        )
        pyg.take_weights(theirs, ours)
        return ours, theirs


MOLHIV = Network("molhiv, 9-27-18-18", 500, 9, (27, 18, 18), (4, 3, 2, 2))
WIDE = Network("molhiv, widths 64", 500, 64, (64, 64, 64), (4, 3, 2, 2))
ONE_HOT = Network("one-hot atoms, 37-64-64", 500, 37, (64, 64), (3, 3, 3))
GEN_CLS = Network("gen-cls, 40-10-10", 200, 40, (10,), (4, 3), 10, None, 0.0, pool=None)


#: Batches that a side takes in its turn: as in an epoch, one finds the caches as another left them.
TURN = 5
#: Seconds before a turn, in which a worker process collates the batches that it is ahead.
REST = 0.1


def one_hot(graphs: PackedGraphs, columns: int) -> PackedGraphs:
    """Molecules whose features are the element alone, the rarest together in the last column."""
    element = graphs.x[:, 0].long()
    rank = element.bincount().argsort(descending=True).argsort()[element]
    x = nn.functional.one_hot(rank.clamp(max=columns - 1), columns).float()
    return PackedGraphs(x, graphs.y, graphs.ptr, graphs.adj, graphs.adj_t)


class OnTensors(nn.Module):
    """Ours called with the tensors of PyG's batches."""

    def __init__(self, model: FlexGCN) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Tensor:
        size = batch.num_graphs
        return self.model(batch.x, batch.edge_index, batch=batch.batch, batch_size=size)


def swapped(theirs: pyg.TAGNet) -> pyg.TAGNet:
    """PyG's network with a `FlexConv` in the place of each `TAGConv`."""
    out = copy.deepcopy(theirs)
    out.convs = nn.ModuleList(FlexConv.from_tag_conv(conv) for conv in theirs.convs)
    return out


def check(
    ours: FlexGCN,
    theirs: list[nn.Module],
    graphs: PackedGraphs,
    data: list[Any],
    task: Task,
    size: int,
) -> None:
    """Ours, and those that take PyG's batches, give what the reference gives in float64 for a batch
    of `size` graphs: outputs in evaluation mode, gradients in training.

    Raises:
        WrongAnswer: one of them does not.
    """
    from torch_geometric.data import Batch

    ids = torch.randperm(len(graphs))[:size]
    exact = copy.deepcopy(ours).double()
    exact.backend = "torch"
    want = _answers(exact, graphs.subset(ids).to(dtype=torch.float64).batch(slice(None)), task)
    collated = Batch.from_data_list([data[i] for i in ids.tolist()])
    for model, batch in ((ours, graphs.batch(ids)), *((model, collated) for model in theirs)):
        errors = relative_errors(_answers(model, batch, task), want)
        must_be_right(errors, [TOLERANCE, GRADIENT_TOLERANCE])


def _answers(model: nn.Module, batch: Any, task: Task) -> list[Tensor]:
    with evaluating(model):
        out = model(batch)
    return [out, *in_training(model, batch, task)]


def run(network: Network, graphs: PackedGraphs, task: Task, rounds: int) -> dict[str, Any]:
    """Median milliseconds of `PYGS` and of `WAYS`, the ratios of the faster of the former to each
    of the latter, and where a training step's time goes."""
    from torch_geometric.loader import DataLoader

    torch.manual_seed(0)
    data = pyg.data_list(graphs)
    ours, theirs = network.models(atoms=not graphs.x.is_floating_point())
    on_batches = {WAYS[1]: OnTensors(ours), WAYS[2]: swapped(theirs), PYGS[0]: theirs}
    check(ours, list(on_batches.values()), graphs, data, task, network.batch_size)

    def loaded(workers: int) -> Iterator[Any]:
        return forever(
            DataLoader(
                data,
                batch_size=network.batch_size,
                shuffle=True,
                drop_last=True,
                num_workers=workers,
                persistent_workers=workers > 0,
            )
        )

    has_room = torch.get_num_threads() > 1  # for a worker process
    ids = torch.arange(len(graphs))
    step = partial(training, task=task)
    out: dict[str, Any] = {"work": network.name, "graphs": len(graphs)}
    for name, kind in (("train", step), ("score", inference)):
        sides = {WAYS[0]: kind(ours, shuffled(graphs, ids, network.batch_size))}
        sides |= {way: kind(model, loaded(0)) for way, model in on_batches.items()}
        if has_room:
            sides[PYGS[1]] = kind(theirs, loaded(1))
        times = interleaved(sides, rounds, TURN, REST * has_room)
        medians = {side: statistics.median(values) for side, values in times.items()}
        fastest = min(medians[side] for side in PYGS if side in medians)
        out |= {f"{name} {side}, ms": value * 1e3 for side, value in medians.items()}
        out |= {f"{name} {side}, spread": spread(values) for side, values in times.items()}
        out |= {f"{name} {way}, ratio": fastest / medians[way] for way in WAYS}
    if native.build() is not None:
        mine = step(ours, shuffled(graphs, ids, network.batch_size))
        rows = stages(ours, graphs.batch(range(network.batch_size)), mine, 5 * rounds)
        out["stages"] = [row._asdict() for row in rows]
        print(f"\n{network.name}: a training step\n\n{table(rows)}\n")
    return out


def paper_mode(graphs: PackedGraphs, task: Task, rounds: int) -> dict[str, Any]:
    """An epoch of the paper's molhiv recipe: the gradient over all graphs, then one step.

    Beside the paper's own formulation, A^[κ] · diag(X; κ) · W, in the recipe's batches.
    """
    from torch_geometric.loader import DataLoader

    from .peers.authors import PaperNet

    data = pyg.data_list(graphs)
    ours, _ = MOLHIV.models(atoms=True)
    args = (9, MOLHIV.hidden_channels, 1, MOLHIV.orders, True, MOLHIV.dropout, True, True)
    theirs = PaperNet(*args)
    pyg.take_weights(theirs, ours)
    check(ours, [theirs], graphs, data, task, MOLHIV.batch_size)
    loader = DataLoader(data, batch_size=MOLHIV.batch_size, shuffle=True)

    def epoch(model: nn.Module, batches: Callable[[], Iterator[Any]]) -> Callable[[], None]:
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        model.train()

        def run() -> None:
            optimizer.zero_grad()
            for batch in batches():
                (loss(model(batch), batch.y, task, reduction="sum") / len(graphs)).backward()
            optimizer.step()

        return run

    def batches() -> Iterator[Any]:
        return (graphs.batch(ids) for ids in torch.randperm(len(graphs)).split(MOLHIV.batch_size))

    names = ("ours", "paper's formulation")
    runs = (epoch(ours, batches), epoch(theirs, lambda: iter(loader)))
    times = interleaved(dict(zip(names, runs, strict=True)), rounds)
    mine, paper = (statistics.median(times[name]) for name in names)
    return {
        "work": f"molhiv, an epoch in the paper's mode ({len(graphs):,} graphs)",
        "ours, s": mine,
        "paper's formulation, s": paper,
        "ratio": paper / mine,
        **{f"{name}, spread": spread(times[name]) for name in names},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hiv", type=Path, default=HIV, help="hiv.csv or a packed file of it")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--graphs", type=int, help="molecules of the file; default: all")
    parser.add_argument("--epoch-graphs", type=int, default=32896, help="of the epoch; 0: none")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=[torch.get_num_threads()],
        help="in turn",
    )
    args = parser.parse_args()
    if args.epoch_graphs and find_spec("torch_sparse") is None:
        parser.error("the paper's formulation needs torch_sparse: install it, or --epoch-graphs 0")
    if not args.hiv.exists():
        parser.error(f"there is no file {args.hiv}: give --hiv hiv.csv, MoleculeNet's")
    warn_without_kernels()
    words = [Path(word).name for word in sys.argv[1:]]  # of a path, only the name
    runs = [{"threads": threads, "figures": measure(args, threads)} for threads in args.threads]
    if args.out is not None:
        facts = {
            "command": shlex.join(["python", "-m", "benchmarks.cpu", *words]),
            "processor": cpu_name(),
            "torch": torch.__version__,
            "kernels": native.build(),
            "runs": runs,
        }
        atomic_write_text(args.out, json.dumps(facts, indent=1) + "\n")


def measure(args: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """All figures on so many threads."""
    torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {threads} threads, {args.rounds} rounds")
    molecules = load_dataset(args.hiv, split="random", num_graphs=args.graphs)
    generated = load_dataset("gen-cls", num_graphs=2000)
    work = [
        (MOLHIV, molecules.graphs, molecules.task),
        (WIDE, molecules.graphs, molecules.task),
        (ONE_HOT, one_hot(molecules.graphs, ONE_HOT.in_channels), molecules.task),
        (GEN_CLS, generated.graphs, generated.task),
    ]
    figures = []
    for network, graphs, task in work:
        figures.append(run(network, graphs, task, args.rounds))
        show(figures[-1])
    if args.epoch_graphs:
        dataset = load_dataset(args.hiv, split="random", num_graphs=args.epoch_graphs)
        figures.append(paper_mode(dataset.graphs, dataset.task, 3))
        show(figures[-1])
    return figures


def show(figures: dict[str, Any]) -> None:
    values = {name: value for name, value in figures.items() if isinstance(value, float)}
    print(figures["work"], *(f"{name}: {value:.2f}" for name, value in values.items()), sep="  ")


if __name__ == "__main__":
    main()
