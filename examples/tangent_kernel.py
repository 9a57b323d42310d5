"""How much does the tangent kernel move during training? Draws docs/tangent-kernel.md's picture.

    python examples/tangent_kernel.py -o docs/tangent-kernel.svg

The target of a small random graph is how many of its edges join nodes of one type, for each node,
and a FlexGCN learns it by one gradient step an epoch on what the teacher selects.
"""

import argparse
from pathlib import Path

import torch

from grant_fast import FlexGCN, GraNTSampler, PackedGraphs, Task
from grant_fast.teaching import loss
from grant_fast.teaching.picking import Mode
from grant_fast.teaching.tangent import check_loss_reduction, tangent_kernel

TASK = Task("regression")


def make_graphs(num_graphs: int) -> PackedGraphs:
    """Random undirected graphs of 5 to 20 nodes of four types, with a standardised target each."""
    draw = torch.Generator().manual_seed(0)
    sizes = torch.randint(5, 21, (num_graphs,), generator=draw)
    batch = torch.repeat_interleave(torch.arange(num_graphs), sizes)
    kind = torch.randint(4, (len(batch),), generator=draw)
    # Each graph has a type of its own at half of its nodes: otherwise all graphs look alike.
    favourite = torch.randint(4, (num_graphs,), generator=draw)[batch]
    kind = torch.where(torch.rand(len(batch), generator=draw) < 0.5, favourite, kind)
    upper = (batch[:, None] == batch).triu(1) & (torch.rand(2 * [len(batch)], generator=draw) < 0.2)
    pairs = upper.nonzero().T
    alike = (kind[pairs[0]] == kind[pairs[1]]).float()
    y = torch.zeros(num_graphs).index_add_(0, batch[pairs[0]], alike) / sizes
    y = ((y - y.mean()) / y.std())[:, None]
    edges = torch.cat([pairs, pairs.flip(0)], dim=1)
    x = torch.nn.functional.one_hot(kind, 4).float()
    return PackedGraphs.from_arrays(x, edges, batch, y, num_graphs=num_graphs)


def watch(
    graphs: PackedGraphs, probe: list[int], epochs: int, mode: Mode
) -> list[dict[str, float]]:
    """Train, and at some epochs compare the probe graphs' kernel with what it was at first."""
    torch.manual_seed(0)
    model = FlexGCN(4, 64, 1, orders=[3, 2], act="tanh")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04)
    sampler = GraNTSampler(graphs, TASK, len(graphs), epochs=epochs, mode=mode, start_ratio=0.1)
    first = tangent_kernel(model, graphs, probe).flatten()
    rows = []
    for epoch in range(epochs):
        if epoch % max(1, epochs // 40) == 0:
            kernel = tangent_kernel(model, graphs, probe).flatten()
            step = check_loss_reduction(model, graphs, TASK, probe)
            rows.append(
                {
                    "epoch": epoch,
                    "loss": 2 * step.before,
                    "change": float((kernel - first).norm() / first.norm()),
                    "similarity": float(torch.cosine_similarity(kernel, first, dim=0)),
                    "fall": step.fall,
                    "first_order": step.first_order,
                    "proposition": step.proposition,
                    "kept": step.keeps_proposition,
                    "half": step.keeps_first_order,
                }
            )
        sampler.select(model, epoch)
        for ids in sampler:
            batch = graphs.batch(ids)
            assert batch.y is not None
            optimizer.zero_grad()
            loss(model(batch), batch.y, TASK).backward()
            optimizer.step()
    return rows


def draw(path: Path, runs: dict[str, list[dict[str, float]]]) -> None:
    """Three panels: the loss, the kernel's change, and the fall of a step against its promises."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.4), constrained_layout=True)
    for name, rows in runs.items():
        epochs = [row["epoch"] for row in rows]
        axes[0].semilogy(epochs, [row["loss"] for row in rows], label=name)
        axes[1].plot(epochs, [row["change"] for row in rows], label=name)
    rows = runs["GraNT"]
    for key, label in (
        ("fall", "the loss's fall"),
        ("first_order", "η rᵀKr / N²"),
        ("proposition", "½ηγ(mean residual)²"),
    ):
        axes[2].semilogy([row["epoch"] for row in rows], [row[key] for row in rows], label=label)
    titles = ("loss", "‖K − K₀‖ / ‖K₀‖", "one step of η = 1/(2τγ), GraNT")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("epoch")
        axis.grid(color="#dddddd", linewidth=0.7)
        axis.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path("tangent-kernel.svg"))
    parser.add_argument("--graphs", type=int, default=300)
    parser.add_argument("--probe", type=int, default=60, help="graphs whose kernel is watched")
    parser.add_argument("--epochs", type=int, default=2000)
    options = parser.parse_args(arguments)
    graphs = make_graphs(options.graphs)
    probe = list(range(options.probe))
    modes: dict[str, Mode] = {"full": "full", "random": "random", "GraNT": "global"}
    runs = {name: watch(graphs, probe, options.epochs, mode) for name, mode in modes.items()}
    for name, rows in runs.items():
        last = rows[-1]
        kept, half = (sum(row[name] for row in rows) for name in ("kept", "half"))
        print(
            f"{name}: loss {rows[0]['loss']:.3f} -> {last['loss']:.3f}, kernel changed by "
            f"{last['change']:.0%} (cosine {last['similarity']:.3f}); the proposition held at "
            f"{kept} of {len(rows)} points, half the first-order fall at {half}"
        )
    draw(options.out, runs)
    print(f"picture: {options.out}")


if __name__ == "__main__":
    main()
