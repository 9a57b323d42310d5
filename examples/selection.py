"""What did the teacher pick, and did it help? Fills docs/selection.md's tables and picture.

    python examples/selection.py --data DATA            # all sets; finished runs are kept
    python examples/selection.py --data DATA --sets esol --seeds 1
    python examples/selection.py --table -o docs/selection.png

DATA holds hiv.csv, tox21.csv, esol.csv and zinc_jtnn_test.smi. Every arm of a set trains the same
first weights on the same schedule of shares; all but `full` see equally many graphs (`grant-b`
rounds up to whole batches). At the start of every probed epoch, right after the teacher's turn, all
training graphs are scored, and the selected ones compared with as many of the truly worst.
"""

import argparse
import json
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from grant_fast import GraNTSampler, score_graphs, select_graphs
from grant_fast.data.dataset import Dataset
from grant_fast.data.load import load_dataset
from grant_fast.files import atomic_write_text
from grant_fast.studies.markdown import markdown
from grant_fast.studies.report import Spread, chance
from grant_fast.teaching.residuals import graph_losses
from grant_fast.training.config import RunConfig
from grant_fast.training.defaults import defaults_for
from grant_fast.training.evaluation import Evaluator
from grant_fast.training.metrics import higher_is_better
from grant_fast.training.model import ModelSpec, build_model
from grant_fast.training.targets import Scaling, targets_of, with_targets

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "selection.json"
NOISE = 0.2  # share of the training labels that a noisy set has shuffled among themselves
CAP = 0.05  # share of the graphs, the hardest, that the capped teacher takes last
SELDOM = 0.05  # the p below which a difference is called clear


@dataclass(frozen=True)
class Study:
    """One set of graphs and for how long it is trained on."""

    source: str
    epochs: int
    probe_every: int = 1
    num_graphs: int | None = None
    noisy: bool = False


STUDIES = {
    "esol": Study("esol.csv", 100, 2),
    "esol, noisy": Study("esol.csv", 100, 2, noisy=True),
    "tox21": Study("tox21.csv", 30),
    "gen-cls": Study("gen-cls", 30, num_graphs=1000),
    "zinc": Study("zinc_jtnn_test.smi", 30),
    "hiv": Study("hiv.csv", 30, 2),
}


class CappedSampler(GraNTSampler):
    """Global selection that takes the hardest graphs last: they may be noise (after Shen and
    Sanghavi, *Learning with bad training data via iterative trimmed loss minimization*, 2019)."""

    def _score(self, model: Any) -> tuple[Tensor, None]:
        scores, _ = super()._score(model)
        hardest = select_graphs(scores, int(CAP * len(scores)))
        return scores.index_fill(0, hardest, -1.0), None


#: Of molecules, whatever the size of the set.
PAPERS_WIDTHS = {"hidden_channels": (27, 18, 18), "embedding": 9}

#: arm -> (sampler, its mode, whether its weights count)
ARMS: dict[str, tuple[type[GraNTSampler], Any, bool]] = {
    "full": (GraNTSampler, "full", True),
    "random": (GraNTSampler, "random", True),
    "grant-b": (GraNTSampler, "batch", True),
    "grant-s": (GraNTSampler, "graph", True),
    "grant-global": (GraNTSampler, "global", True),
    "capped": (CappedSampler, "global", True),
    "proportional": (GraNTSampler, "proportional", True),
    "proportional, unweighted": (GraNTSampler, "proportional", False),
}


def load(study: Study, data: Path) -> tuple[Dataset, Tensor]:
    """The data, and which of its training graphs have another one's label."""
    generated = study.num_graphs is not None
    source = study.source if generated else str(data / study.source)
    target = ("all",) if study.source == "tox21.csv" else None
    dataset = load_dataset(source, target=target, num_graphs=study.num_graphs, progress=False)
    dataset = dataset.grouped()
    train = dataset.split["train"]
    wrong = torch.zeros(len(train), dtype=torch.bool)
    if study.noisy:
        draw = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(train), generator=draw)[: int(NOISE * len(train))]
        wrong[chosen] = True
        assert dataset.graphs.y is not None
        y = dataset.graphs.y.clone()
        y[train[chosen]] = y[train[chosen.roll(1)]]
        dataset.graphs.y = y
    return dataset, wrong


def train(dataset: Dataset, wrong: Tensor, study: Study, arm: str, seed: int) -> dict[str, Any]:
    """One run: its best and last test metric, its cost, and what it picked."""
    settings = defaults_for(study.source, len(dataset.graphs)) | {"epochs": study.epochs}
    if dataset.encoder == "atom":
        settings |= PAPERS_WIDTHS
    config = RunConfig(**settings, source=study.source, seed=seed)
    task, ids = dataset.task, dataset.split["train"]
    scaling = Scaling.fit(targets_of(dataset.graphs, ids)) if task.kind == "regression" else None
    spec = ModelSpec(dataset.graphs.num_features, dataset.encoder, task, scaling)
    graphs = with_targets(dataset.graphs, spec.encode)
    y = {part: targets_of(dataset.graphs, where) for part, where in dataset.split.items()}
    evaluate = Evaluator(graphs, dataset.split, y, dataset.metric, spec)
    model = build_model(config, spec)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    kind, mode, weighted = ARMS[arm]
    sampler = kind(
        graphs,
        task,
        config.batch_size,
        epochs=config.epochs,
        mode=mode,
        start_ratio=config.start_ratio,
        ids=ids,
        seed=seed,
    )
    torch.manual_seed(seed)  # of the dropout
    sign = 1 if higher_is_better(dataset.metric) else -1
    best, best_test, visits, probes = -torch.inf, 0.0, 0, []
    selecting = training = 0.0  # seconds of the processor, so that other programs do not count
    for epoch in range(config.epochs):
        start = time.process_time()
        sampler.select(model, epoch)
        selecting += time.process_time() - start
        if epoch % study.probe_every == 0:
            probes.append({"epoch": epoch} | probe(sampler, model, wrong))
        start = time.process_time()
        model.train()
        for batch_ids in sampler:
            batch = graphs.batch(batch_ids)
            assert batch.y is not None
            losses, labels = graph_losses(model(batch), batch.y, task, batch.ptr)
            weights = sampler.weights(batch_ids) if weighted else None
            if weights is not None:
                losses, labels = weights * losses, weights * labels
            optimizer.zero_grad()
            (losses.sum() / labels.sum().clamp(min=1)).backward()
            optimizer.step()
            visits += len(batch_ids)
        training += time.process_time() - start
        if epoch % study.probe_every == 0 or epoch == config.epochs - 1:
            valid = sign * evaluate(model, "valid")[1]
            if valid > best:
                best, best_test = valid, evaluate(model, "test")[1]
    return {
        "metric": dataset.metric,
        "test": best_test,
        "test_last": evaluate(model, "test")[1],
        "visits": visits,
        "selecting_seconds": round(selecting, 3),
        "training_seconds": round(training, 3),
        "train_graphs": len(ids),
        "probes": probes,
    }


def probe(sampler: GraNTSampler, model: Any, wrong: Tensor) -> dict[str, float]:
    """How much of the selection is among the truly worst graphs now, and what else is in it."""
    graphs, task, ids = sampler.dataset, sampler.task, sampler.ids
    picked = torch.zeros(len(ids), dtype=torch.bool)
    picked[torch.searchsorted(ids, sampler.selected)] = True
    worst = torch.zeros_like(picked)
    scores = score_graphs(model, graphs, task, ids=ids)
    worst[select_graphs(scores, int(picked.sum()))] = True
    out = {"share": float(picked.float().mean()), "overlap": float(worst[picked].float().mean())}
    if task.kind == "binary":
        positive = targets_of(graphs, ids)[:, 0] == 1
        out |= {"positive": float(positive[picked].float().mean())}
        out |= {"positive_in_all": float(positive.float().mean())}
    if wrong.any():
        out["noisy"] = float(wrong[picked].float().mean())
    return {name: round(value, 4) for name, value in out.items()}


def measure(names: list[str], seeds: int, data: Path, results: Path) -> None:
    """Run what `results` does not hold yet; seeds outermost, each begins with another arm."""
    runs = json.loads(results.read_text())["runs"] if results.exists() else []
    done = {(run["set"], run["arm"], run["seed"]) for run in runs}
    for name in names:
        dataset, wrong = load(STUDIES[name], data)
        train(dataset, wrong, replace(STUDIES[name], epochs=1), "grant-global", 0)  # caches
        for seed in range(seeds):
            arms = list(ARMS)
            shift = seed % len(arms)
            for arm in arms[shift:] + arms[:shift]:
                if (name, arm, seed) in done:
                    continue
                row = train(dataset, wrong, STUDIES[name], arm, seed)
                runs.append({"set": name, "arm": arm, "seed": seed} | row)
                about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
                atomic_write_text(results, json.dumps({"about": about, "runs": runs}) + "\n")
                print(f"{name} {arm} {seed}: {row['metric']} {row['test']:.4f}", flush=True)


def tables(runs: list[dict[str, Any]]) -> str:
    """Markdown: one table a set."""
    text = []
    for name in dict.fromkeys(run["set"] for run in runs):
        mine = [run for run in runs if run["set"] == name]
        by_arm = defaultdict(list)
        for run in mine:
            by_arm[run["arm"]].append(run)
        extra = [key for key in ("positive", "noisy") if key in mine[0]["probes"][0]]
        heads = ["arm", f"test {mine[0]['metric']}", "p", "at the last epoch", "p"]
        heads += ["graphs seen", "seconds", "selecting", "overlap", "chance"]
        heads += [f"{key} among them" for key in extra]
        text.append(
            f"**{name}** ({len(by_arm['full'])} seeds, {mine[0]['train_graphs']:,} training graphs)"
        )
        rows = []
        for arm in (arm for arm in ARMS if arm in by_arm):
            group = by_arm[arm]
            early = [p for run in group for p in run["probes"] if p["share"] < 1]
            cells = [arm]
            for key in ("test", "test_last"):
                p = beside(group, by_arm.get("random", []), key)
                cells += [spread(group, key), "–" if p is None else shown(p)]
            cells.append(f"{mean(run['visits'] for run in group):,.0f}")
            selecting = mean(run["selecting_seconds"] for run in group)
            seconds = selecting + mean(run["training_seconds"] for run in group)
            cells += [f"{seconds:.1f}", f"{selecting / seconds:.1%}"]
            for key in ("overlap", "share", *extra):
                cells.append(f"{mean(p[key] for p in early):.1%}" if early else "–")
            rows.append(cells)
        text.append(markdown(heads, rows))
    return "\n\n".join(text)


def beside(group: list[dict[str, Any]], others: list[dict[str, Any]], key: str) -> float | None:
    """The p of Welch's t-test of two arms' test metrics; None of an arm beside itself."""
    if group is others or min(len(group), len(others)) < 2:
        return None
    one, other = (Spread.of([run[key] for run in runs]) for runs in (group, others))
    return chance(one, other)


def lasting(runs: list[dict[str, Any]], key: str) -> str:
    """Which arms differ from random when all comparisons count, in a sentence: by the correction of
    S. Holm, *Scandinavian Journal of Statistics* 6, 1979."""
    groups = defaultdict(list)
    for run in runs:
        groups[run["set"], run["arm"]].append(run)
    found = {
        at: beside(group, groups.get((at[0], "random"), []), key) for at, group in groups.items()
    }
    ascending = sorted((p, at) for at, p in found.items() if p is not None)
    kept = takewhile(
        lambda place: place[1][0] * (len(ascending) - place[0]) < SELDOM, enumerate(ascending)
    )
    clear = [(p, *at) for _, (p, at) in kept]
    few = sum(p < SELDOM for p, _ in ascending)
    named = ", ".join(f"{arm} on {name} ({shown(p)})" for p, name, arm in clear) or "none"
    return f"{few} of {len(ascending)} have p < {SELDOM}; by Holm's correction: {named}."


def shown(p: float) -> str:
    return f"{p:.3f}" if p >= 0.0005 else "< 0.001"


def spread(group: list[dict[str, Any]], key: str) -> str:
    values = [run[key] for run in group]
    return f"{mean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def draw(path: Path, runs: list[dict[str, Any]]) -> None:
    """Overlap of the selected with the truly worst graphs, over the epochs, one panel a set."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(run["set"] for run in runs))
    figure, axes = pyplot.subplots(
        2, -(-len(names) // 2), figsize=(11, 6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes.flat, names, strict=False):
        shares: dict[int, float] = {}
        for arm in list(ARMS)[1:]:
            group = [run["probes"] for run in runs if run["set"] == name and run["arm"] == arm]
            if not group:
                continue
            shares = {probe["epoch"]: probe["share"] for probe in group[0]}
            points = zip(*group, strict=True)
            axis.plot(list(shares), [mean(p["overlap"] for p in at) for at in points], label=arm)
        random = list(shares), list(shares.values())
        axis.plot(*random, color="black", linestyle=":", label="chance")
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("epoch")
        axis.grid(color="#dddddd", linewidth=0.7)
    axes[0, 0].set_ylabel("selected graphs among the worst")
    named = axes[0, 0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=len(ARMS), fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the molecules")
    parser.add_argument("--sets", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only show what was measured before")
    parser.add_argument("-o", "--out", type=Path, help="the picture")
    options = parser.parse_args(arguments)
    if not options.table:
        measure(options.sets, options.seeds, options.data, options.results)
    runs = json.loads(options.results.read_text())["runs"]
    print(tables(runs))
    for key, which in (("test", "best by validation"), ("test_last", "at the last epoch")):
        print(f"\nAgainst random, {which}: {lasting(runs, key)}")
    if options.out is not None:
        draw(options.out, runs)


if __name__ == "__main__":
    main()
