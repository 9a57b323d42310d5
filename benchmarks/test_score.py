"""Scoring and selection beside inference alone: `pytest benchmarks/test_score.py`.

The same graphs, model and chunks on both sides, in turn; the ratio of medians is printed.
"""

import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from grant_fast import FlexGCN, score_graphs, select_graphs
from grant_fast.data.dataset import Dataset
from grant_fast.data.load import load_dataset
from grant_fast.nn.evaluating import evaluating
from grant_fast.teaching.gathering import scoring_runs

from .data import HIV
from .timing import interleaved

NUM_GRAPHS, SHARE = 30_000, 10


def molecules() -> tuple[Dataset, FlexGCN]:
    if not HIV.exists():
        pytest.skip("the real molecules are not beside this checkout")
    net: dict[str, Any] = {
        "orders": [4, 3, 2, 2],
        "norm": "batch_norm",
        "dropout": 0.27,
        "encoder": "atom",
    }
    return load_dataset(HIV, progress=False), FlexGCN(9, (27, 18, 18), 1, **net)


def graphons() -> tuple[Dataset, FlexGCN]:
    # 30,000 of them are 75 million edges: 1,000, each taken thirty times.
    return load_dataset("gen-cls", num_graphs=1000, progress=False), FlexGCN(
        40, (10,), 10, orders=[4, 3], pool=None
    )


@pytest.mark.parametrize("make", [molecules, graphons])
def test_scoring_and_selection_beside_inference(  # type: ignore[no-untyped-def]
    make, benchmark, capsys
):
    dataset, model = make()
    graphs, ids = dataset.graphs, torch.arange(NUM_GRAPHS) % len(dataset.graphs)
    parts = [ids[run] for run in scoring_runs(graphs, ids, None)]

    def infer() -> list[Tensor]:
        with evaluating(model):
            return [model(graphs.batch(part)) for part in parts]

    def teach() -> Tensor:
        return select_graphs(score_graphs(model, graphs, dataset.task, ids=ids), len(ids) // SHARE)

    times = interleaved({"infer": infer, "teach": teach}, rounds=5)
    ratio = statistics.median(times["teach"]) / statistics.median(times["infer"])
    benchmark.extra_info["ratio"] = ratio
    benchmark.pedantic(teach, rounds=1)
    with capsys.disabled():
        print(f"\n{make.__name__}: (scoring + selection) / inference = {ratio:.3f}")
