import copy
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from grant_fast.errors import InputError
from grant_fast.graphs import PackedGraphs
from grant_fast.tasks import Task
from grant_fast.teaching.order import deal, permutation
from grant_fast.teaching.picking import MODES
from grant_fast.teaching.sampler import GraNTSampler
from grant_fast.teaching.schedules import ratio_at, selection_epochs, share_size

REGRESSION = Task("regression")


def served(sampler: GraNTSampler) -> list[int]:
    return [position for batch in sampler for position in batch]


def worst(graphs: list, m: int) -> set[int]:
    """The identities of the m graphs of largest |y|."""
    return {int(g.uid) for g in sorted(graphs, key=lambda g: -float(g.y))[:m]}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_truly_worst_graphs_are_served_however_the_data_is_shuffled(
    make_graphs, zero, seed
) -> None:
    from torch_geometric.loader import DataLoader

    graphs = make_graphs(101)
    expected = worst(graphs, 21)
    shuffled = [graphs[i] for i in torch.randperm(101, generator=torch.Generator().manual_seed(7))]
    for dataset in (graphs, shuffled):
        sampler = GraNTSampler(
            dataset,
            REGRESSION,
            8,
            epochs=1,
            mode="global",
            start_ratio=0.2,
            predict=zero,
            seed=seed,
        )
        assert sampler.select(zero, 0)
        loader = DataLoader(dataset, batch_sampler=sampler)
        assert len(loader) == 3
        batches = [batch.uid.tolist() for batch in loader]
        assert [len(batch) for batch in batches] == [8, 8, 5]
        assert {uid for batch in batches for uid in batch} == expected
        assert {int(dataset[i].uid) for i in sampler.selected.tolist()} == expected
        order = [uid for batch in batches for uid in batch]
        assert order != sorted(order)  # served shuffled, and yet the right ones


def test_identity_survives_packing_indexing_and_torchs_loader(make_graphs, zero) -> None:
    graphs = make_graphs(60)
    packed = PackedGraphs.from_data_list(graphs)[torch.randperm(60)]
    assert isinstance(packed, PackedGraphs)
    ids = torch.randperm(60)[:45]
    training = [graphs[int(packed.ids[i])] for i in ids]
    sampler = GraNTSampler(
        packed, REGRESSION, 4, epochs=1, mode="global", ids=ids, start_ratio=0.2, predict=zero
    )
    sampler.select(nn.Identity(), 0)
    loader: Any = torch.utils.data.DataLoader(packed, batch_sampler=sampler)
    seen = [int(i) for batch in loader for i in batch.ids]
    assert len(seen) == 9
    assert set(seen) == worst(training, 9)
    by_hand = [int(i) for where in sampler for i in packed.batch(where).ids]
    assert by_hand == seen


@pytest.mark.parametrize("name", ["batch_size", "ids", "mode", "seed", "curriculum", "epochs"])
def test_what_selections_are_made_with_stays(make_graphs, name) -> None:
    sampler = GraNTSampler(make_graphs(8), REGRESSION, 4, epochs=1, mode="random")
    with pytest.raises(InputError, match=f"{name} of a sampler is fixed: make another GraNTSam"):
        setattr(sampler, name, getattr(sampler, name, 2))
    sampler.dataset = make_graphs(8)  # as one that was moved to another device
    assert sorted(served(copy.deepcopy(sampler))) == sampler.selected.tolist()


@pytest.mark.parametrize("num_graphs", [40, 43])
@pytest.mark.parametrize("ratio", [0.05, 0.3, 0.35, 0.8])
def test_b_keeps_whole_the_batches_of_largest_mean_score(
    make_graphs, zero, num_graphs, ratio
) -> None:
    graphs = make_graphs(num_graphs)
    sampler = GraNTSampler(
        graphs, REGRESSION, 8, epochs=1, mode="batch", start_ratio=ratio, predict=zero, seed=5
    )
    planned = len(sampler)
    sampler.select(zero, 0)
    dealt = deal(num_graphs, 8, 5, 0)
    groups = [(dealt == b).nonzero().squeeze(1) for b in range(int(dealt.max()) + 1)]
    y = torch.cat([graph.y for graph in graphs])
    groups.sort(key=lambda members: -y[members].mean())
    expected = groups[: math.ceil(ratio * len(groups))]
    assert planned == len(sampler) == len(expected)
    assert {frozenset(b) for b in sampler} == {frozenset(g.tolist()) for g in expected}
    assert sampler.selected.tolist() == sorted(i for g in expected for i in g.tolist())


def test_s_takes_the_share_of_each_batch_and_regroups(make_graphs, zero) -> None:
    graphs = make_graphs(43)
    sampler = GraNTSampler(
        graphs, REGRESSION, 8, epochs=1, mode="graph", start_ratio=0.5, predict=zero, seed=5
    )
    sampler.select(zero, 0)
    y = torch.cat([graph.y for graph in graphs])
    dealt = deal(43, 8, 5, 0)
    picked = set(sampler.selected.tolist())
    assert len(picked) == 22
    for b in range(6):
        members = sorted((dealt == b).nonzero().squeeze(1).tolist(), key=lambda i: -float(y[i]))
        mine = picked & set(members)
        assert mine == set(members[: len(mine)])
        assert abs(len(mine) - len(members) * 22 / 43) < 1
    assert [len(batch) for batch in sampler] == [8, 8, 6]


@pytest.mark.parametrize("interval", ["curriculum", 7])
def test_random_draws_as_many_graphs_at_the_same_epochs(make_graphs, zero, interval) -> None:
    graphs = make_graphs(50)
    settings = {"epochs": 40, "start_ratio": 0.2, "interval": interval, "predict": zero}
    samplers = {
        mode: GraNTSampler(graphs, REGRESSION, 6, mode=mode, **settings)
        for mode in ["graph", "global", "proportional", "random"]
    }
    due = selection_epochs(40, 0.2, interval)
    drawn = set()
    for epoch in range(40):
        changed = {mode: sampler.select(zero, epoch) for mode, sampler in samplers.items()}
        assert changed == dict.fromkeys(samplers, epoch in due)
        at = max(t for t in due if t <= epoch)
        m = share_size(ratio_at(at, 40, 0.2), 50)
        for sampler in samplers.values():
            assert sampler.num_selected == m
            assert len(sampler) == len(list(sampler)) == math.ceil(m / 6)
            assert sampler.ratio == ratio_at(at, 40, 0.2)
        drawn.add(tuple(samplers["random"].selected.tolist()))
    assert len(drawn) == len(due)  # a fresh subset at each selection


def test_random_is_uniform_and_needs_no_model() -> None:
    graphs = [None] * 20
    counts = torch.zeros(20)
    for seed in range(400):
        sampler = GraNTSampler(
            graphs, REGRESSION, 5, epochs=1, mode="random", start_ratio=0.25, seed=seed
        )
        counts[sampler.selected] += 1
    # binomial(400, ¼): mean 100, deviation 8.7
    assert counts.sum() == 2000
    assert (counts - 100).abs().max() < 4 * 8.7


def test_all_arms_see_the_data_in_the_same_order(make_graphs, zero) -> None:
    graphs = make_graphs(37)
    samplers = {
        mode: GraNTSampler(
            graphs, REGRESSION, 5, epochs=9, mode=mode, start_ratio=0.4, predict=zero, seed=3
        )
        for mode in MODES
    }
    orders = []
    for epoch in range(9):
        for sampler in samplers.values():
            sampler.select(zero, epoch)
        everything = served(samplers["full"])
        assert sorted(everything) == list(range(37))
        for mode in ["graph", "global", "proportional", "random"]:
            chosen = set(samplers[mode].selected.tolist())
            assert served(samplers[mode]) == [i for i in everything if i in chosen]
        rank = {position: place for place, position in enumerate(everything)}
        batches = list(samplers["batch"])
        assert all(batch == sorted(batch, key=rank.__getitem__) for batch in batches)
        assert batches == sorted(batches, key=lambda batch: rank[batch[0]])
        orders.append(everything)
    assert len({tuple(order) for order in orders}) == 9  # reshuffled every epoch
    assert orders[4] == permutation(37, 3, 0, 4).tolist()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_graphs", [1, 8, 43])
def test_the_length_is_right_before_the_selection_and_after(
    make_graphs, zero, mode, num_graphs
) -> None:
    graphs = make_graphs(num_graphs)
    sampler = GraNTSampler(graphs, REGRESSION, 8, epochs=30, mode=mode, predict=zero)
    for epoch in range(30):
        sampler.set_epoch(epoch)
        announced = len(sampler)
        sampler.select(zero, epoch)
        assert announced == len(sampler) == len(list(sampler)) > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_schedule_learns_how_many_batches_there_will_be(make_graphs, zero, mode) -> None:
    sampler = GraNTSampler(make_graphs(43), REGRESSION, 8, epochs=30, mode=mode, predict=zero)
    announced, steps = sampler.total_batches, 0
    for epoch in range(30):
        sampler.select(zero, epoch)
        steps += len(list(sampler))
    assert steps == announced


def test_who_keeps_an_old_length_is_warned_once(make_graphs, zero) -> None:
    sampler = GraNTSampler(make_graphs(43), REGRESSION, 8, epochs=30, mode="global", predict=zero)
    kept = len(sampler)  # as Lightning's Trainer keeps it
    with pytest.warns(UserWarning, match=r"1 of its 2 batches.*train_dataloader") as warned:
        for epoch in range(30):
            sampler.select(zero, epoch)
            list(zip(range(kept), sampler, strict=False))
    assert len(warned) == 1


def test_who_asks_anew_may_serve_fewer_batches(make_graphs, zero) -> None:
    sampler = GraNTSampler(make_graphs(43), REGRESSION, 8, epochs=30, mode="global", predict=zero)
    for epoch in range(30):
        sampler.select(zero, epoch)
        assert len(sampler) > 0  # as a progress bar asks
        list(zip(range(2), sampler, strict=False))


def test_a_share_of_one_selects_everything_without_looking(make_graphs) -> None:
    def never(model: Any, batch: Any) -> Tensor:
        raise AssertionError("nothing is to be scored")

    for mode in MODES:
        sampler = GraNTSampler(
            make_graphs(11), REGRESSION, 4, epochs=3, mode=mode, start_ratio=1.0, predict=never
        )
        assert sampler.select(None, 0) is (mode != "full")
        assert sorted(served(sampler)) == list(range(11))
        assert [len(batch) for batch in sampler] == [4, 4, 3]
        assert sampler.scores is None


def test_selecting_leaves_the_global_random_state_alone(make_graphs, zero) -> None:
    graphs = make_graphs(20)
    state = torch.get_rng_state()
    for mode in MODES:
        sampler = GraNTSampler(graphs, REGRESSION, 8, epochs=4, mode=mode, predict=zero)
        sampler.select(nn.Dropout(), 0)
        list(sampler)
    assert torch.get_rng_state().equal(state)


def test_node_level_and_multilabel_tasks_pick_what_the_formula_says(make_graphs) -> None:
    graphs = make_graphs(30)
    torch.manual_seed(4)
    for graph in graphs:
        graph.y = torch.randn(len(graph.x), 2)
        graph.y[torch.rand_like(graph.y) < 0.2] = math.nan
    task = Task("regression", "node", 2)
    sampler = GraNTSampler(
        graphs, task, 7, epochs=1, mode="global", start_ratio=0.3, predict=lambda m, b: b.x[:, :2]
    )
    sampler.select(nn.Identity(), 0)
    errors = [(g.x[:, :2] - g.y, ~g.y.isnan().all(1)) for g in graphs]
    scores = [float(e.nan_to_num().norm()) / max(int(n.sum()), 1) for e, n in errors]
    expected = sorted(sorted(range(30), key=lambda i: -scores[i])[:9])
    assert sampler.selected.tolist() == expected


def test_the_order_of_ids_does_not_matter(make_graphs, zero) -> None:
    graphs = make_graphs(30)
    ids = torch.randperm(30, generator=torch.Generator().manual_seed(0))[:20]
    one = GraNTSampler(graphs, REGRESSION, 4, epochs=1, mode="graph", predict=zero, ids=ids)
    two = GraNTSampler(
        graphs, REGRESSION, 4, epochs=1, mode="graph", predict=zero, ids=ids.sort().values.tolist()
    )
    one.select(zero, 0)
    two.select(zero, 0)
    assert list(one) == list(two)
    assert set(served(one)) <= set(ids.tolist())


def test_ids_may_be_a_mask(make_graphs) -> None:
    mask = torch.arange(9) % 3 == 0
    for ids in (mask, mask.tolist(), mask.numpy()):
        sampler = GraNTSampler(make_graphs(9), REGRESSION, 4, epochs=5, ids=ids)
        assert sampler.ids.tolist() == [0, 3, 6]
    with pytest.raises(InputError, match=r"uint8 is a mask or positions: give mask\.bool"):
        GraNTSampler(make_graphs(9), REGRESSION, 4, epochs=5, ids=mask.to(torch.uint8))


def test_numpys_numbers_leave_plain_values_in_the_state(make_graphs) -> None:
    sizes = {"batch_size": np.int64(4), "epochs": np.int64(5), "interval": np.int64(2)}
    sampler = GraNTSampler(make_graphs(9), REGRESSION, mode="random", **sizes)
    sampler.select(None, np.int64(1))
    state = sampler.state_dict()
    torch.save(state, file := io.BytesIO())
    file.seek(0)
    assert torch.load(file, weights_only=True)["settings"] == state["settings"]
    assert sampler.curriculum.selection_epochs == (0, 2, 4)


def test_it_says_what_it_is(make_graphs) -> None:
    text = repr(GraNTSampler(make_graphs(9), REGRESSION, 4, epochs=5, mode="graph"))
    assert "9 graphs, mode='graph', batch_size=4" in text
    assert "epochs=5" in text and "start_ratio=0.1" in text
