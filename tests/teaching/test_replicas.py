"""Several processes that train one model, each on its share of the batches."""

import gc
import importlib
import re
import sys

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from grant_fast import FlexGCN, GraNTSampler, InputError, PackedGraphs, Task
from grant_fast.teaching import loss
from grant_fast.teaching.picking import SCORED
from grant_fast.teaching.replicas import Replicas

TASK = Task("regression")
EPOCHS = 4


def rings(count: int) -> PackedGraphs:
    """Rings of 3 to 7 nodes, with features and targets drawn from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.arange(count) % 5 + 3
    batch = torch.repeat_interleave(torch.arange(count), sizes)
    node = torch.arange(len(batch))
    last = sizes.cumsum(0)[batch] - 1
    following = torch.where(node == last, last - sizes[batch] + 1, node + 1)
    x = torch.randn(len(batch), 3, generator=generator)
    y = torch.randn(count, 1, generator=generator)
    return PackedGraphs.from_arrays(x, torch.stack([node, following]), batch, y)


def sampler_of(graphs: PackedGraphs, mode: str, replicas: int = 1, rank: int = 0) -> GraNTSampler:
    return GraNTSampler(
        graphs, TASK, 4, epochs=EPOCHS, mode=mode, start_ratio=0.3, interval=1,
        ratio_schedule="linear", score_batch_size=8, num_replicas=replicas, rank=rank,
    )  # fmt: skip


@pytest.mark.parametrize("num_batches", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_process_serves_as_many_batches_and_together_all(count, num_batches):
    processes = [Replicas(count, rank) for rank in range(count)]
    shares = [process.served([*range(num_batches)]) for process in processes]
    in_turns = [batch for turn in zip(*shares, strict=True) for batch in turn]
    assert {len(share) for share in shares} == {processes[0].rounds(num_batches)}
    assert in_turns[:num_batches] == [*range(num_batches)]
    again = in_turns[num_batches:]
    assert len(again) < count and again == [i % num_batches for i in range(len(again))]


@pytest.mark.parametrize("size", [4, 5, 49])
def test_every_graph_is_scored_by_one_process(size):
    parts = [range(size)[Replicas(4, rank).part(size)] for rank in range(4)]
    assert [i for part in parts for i in part] == [*range(size)]
    assert all(len(part) in (size // 4, size // 4 + 1) for part in parts)


@pytest.mark.parametrize("mode", ["random", "full"])
def test_modes_without_scores_need_no_process_group(mode):
    graphs = rings(49)
    alone = sampler_of(graphs, mode)
    both = [sampler_of(graphs, mode, 2, rank) for rank in range(2)]
    for epoch in range(EPOCHS):
        for sampler in (alone, *both):
            sampler.set_epoch(epoch)
        first, second = map(list, both)
        assert len(first) == len(second) == len(both[0])
        in_turns = [batch for turn in zip(first, second, strict=True) for batch in turn]
        assert in_turns[: len(alone)] == list(alone)
    assert both[0].total_batches == sum(-(-n // 2) for n in _lengths(graphs, mode))


def _lengths(graphs: PackedGraphs, mode: str) -> list[int]:
    sampler, found = sampler_of(graphs, mode), []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        found.append(len(sampler))
    return found


def _train(rank: int, count: int, folder: str) -> None:
    """What one process does; it writes down what it saw."""
    importlib.import_module("torch._dynamo")  # DDP does; once there is a group, it would keep it
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=count)
    torch.save(_seen(rank, count), f"{folder}/{rank}.pt")
    gc.collect()  # the models, which hold the group: threads of it that outlive Python may abort
    dist.destroy_process_group()


def _seen(rank: int, count: int) -> list[dict[str, object]]:
    # 49 graphs for 2: one process scores in 3 passes, the other in 4.
    graphs, seen = rings(49), []
    for mode in SCORED:
        torch.manual_seed(0)
        model = DistributedDataParallel(FlexGCN(3, 4, 1, orders=[3, 2], norm="batch_norm"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sampler, alone = sampler_of(graphs, mode, count, rank), sampler_of(graphs, mode)
        with pytest.warns(UserWarning, match="learns in 2 processes, but num_replicas is 1"):
            sampler_of(graphs, mode).select(model, 0)
        for epoch in range(EPOCHS):
            sampler.select(model, epoch)  # the norms have seen other batches in each process
            alone.select(model.module, epoch)
            assert torch.equal(sampler.scores, alone.scores)
            batches = list(sampler)
            seen.append({"served": batches, "expected": list(alone)})
            for ids in batches:
                batch = graphs.batch(ids)
                optimizer.zero_grad()
                loss(model(batch), batch.y, TASK).backward()
                optimizer.step()
        seen.append({"weights": [p.detach().clone() for p in model.parameters()]})
    seen.append({"refused": [_refusal(other, model) for other in _unlike(graphs, count, rank)]})
    return seen


def _unlike(graphs: PackedGraphs, count: int, rank: int) -> list[GraNTSampler]:
    """Samplers that differ between processes, each in one thing only, but for one, in two, and for
    the last, in none at all, though their ranks should."""
    more = {"epochs": EPOCHS, "num_replicas": count, "rank": rank, "start_ratio": 0.5}
    return [
        GraNTSampler(graphs, TASK, 4, seed=rank, **more),
        GraNTSampler(graphs, TASK, 4, ids=range(rank, rank + 40), **more),
        GraNTSampler(graphs, TASK, 4, mode=SCORED[rank], **more),
        GraNTSampler(graphs.subset(range(rank, rank + 39)), TASK, 4, **more),
        GraNTSampler(graphs, TASK, 4 + rank, ids=range(40 + rank), **more),
        GraNTSampler(graphs, TASK, 4, **more | {"rank": 1}),
    ]


def _refusal(sampler: GraNTSampler, model: torch.nn.Module) -> str:
    with pytest.raises(InputError) as refused:
        sampler.select(model, 0)
    return str(refused.value)


@pytest.mark.skipif(not dist.is_available(), reason="this PyTorch knows of one process only")
@pytest.mark.filterwarnings("ignore::UserWarning")  # gloo's, about the host's name
def test_processes_pick_the_same_graphs_as_one_alone_and_share_the_batches(tmp_path, monkeypatch):
    if sys.platform == "linux":  # elsewhere the loopback has other names
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(_train, (2, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    epochs = 0
    for one, other in zip(first, second, strict=True):
        if "refused" in one:
            _check_refusals(one["refused"], other["refused"])
            continue
        if "weights" in one:
            assert all(map(torch.equal, one["weights"], other["weights"]))
            continue
        in_turns = [b for turn in zip(one["served"], other["served"], strict=True) for b in turn]
        assert one["expected"] == other["expected"] == in_turns[: len(one["expected"])]
        epochs += 1
    assert epochs == EPOCHS * len(SCORED)


def _check_refusals(first: list[str], second: list[str]) -> None:
    """Both processes name what differs between them, and nothing else; or that nothing does."""
    same_rank = {first.pop(), second.pop()}
    assert len(same_rank) == 1
    assert (
        "no process has rank 0 of num_replicas=2, so some have the same (here 1)" in same_rank.pop()
    )
    names = (("seed",), ("ids_crc32",), ("mode",), ("num_nodes", "num_edges"))
    names = (*names, ("batch_size", "num_graphs", "ids_crc32"))
    for here, there, expected in zip(first, second, names, strict=True):
        assert here != there
        for said in (here, there):
            assert said.startswith("not the same in all 2 processes: ")
            assert tuple(re.findall(r"(\w+) \(here", said)) == expected
    assert "seed (here 0)" in first[0] and "seed (here 1)" in second[0]
    assert "mode (here 'batch')" in first[2] and "mode (here 'graph')" in second[2]


def test_what_cannot_be_is_refused():
    graphs = rings(3)
    with pytest.raises(InputError, match=r"rank is 2 of num_replicas=2.*get_rank"):
        sampler_of(graphs, "batch", 2, 2)
    with pytest.raises(InputError, match=r"num_replicas=0: give a whole number"):
        sampler_of(graphs, "batch", 0)
    with pytest.raises(InputError, match=r"num_replicas is 4, but there are 3 graphs"):
        sampler_of(graphs, "batch", 4)
    sampler = sampler_of(graphs, "global", 2, 1)
    with pytest.raises(InputError, match=r"has no process group.*init_process_group"):
        sampler.select(FlexGCN(3, 4, 1, orders=[2, 2]), 0)


def test_a_nan_is_told_to_all_processes_before_any_of_them_ends(monkeypatch):
    graphs = rings(4)

    def joined(self, part, size):
        met.append(bool(part.isnan().any()))
        return torch.cat([part, torch.ones(2)])

    met: list[bool] = []
    monkeypatch.setattr(Replicas, "joined", joined)
    monkeypatch.setattr(Replicas, "_check_group", lambda self: None)
    monkeypatch.setattr(Replicas, "check_alike", lambda self, settings, device: None)
    model = FlexGCN(3, 4, 1, orders=[2, 2])
    torch.nn.init.constant_(model.convs[0].weight, torch.nan)
    with pytest.raises(InputError, match=r"id 0 is NaN or infinite \(so for 2 of 4 graphs\)"):
        sampler_of(graphs, "global", 2, 0).select(model, 0)
    assert met == [True]


def test_a_nan_is_named_by_the_graph_and_not_by_its_place_in_ids(monkeypatch):
    monkeypatch.setattr(Replicas, "_check_group", lambda self: None)
    monkeypatch.setattr(Replicas, "check_alike", lambda self, settings, device: None)
    monkeypatch.setattr(dist, "all_reduce", lambda *_: None)
    model = FlexGCN(3, 4, 1, orders=[2, 2])
    torch.nn.init.constant_(model.convs[0].weight, torch.nan)
    settings = {"epochs": 1, "ids": [2, 3, 4], "num_replicas": 2, "rank": 0}
    sampler = GraNTSampler(rings(5), Task("regression"), 1, **settings)
    with pytest.raises(InputError, match="the graph with id 2 is NaN"):
        sampler.select(model, 0)


def test_a_run_may_go_on_in_another_number_of_processes():
    graphs = rings(49)
    sampler = sampler_of(graphs, "random")
    sampler.set_epoch(2)
    resumed = sampler_of(graphs, "random", 2, 1)
    resumed.load_state_dict(sampler.state_dict())
    assert torch.equal(resumed.selected, sampler.selected)
    assert next(iter(resumed)) == list(sampler)[1]


def test_a_group_is_of_as_many_processes_as_there_are(monkeypatch):
    model = object.__new__(DistributedDataParallel)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    assert Replicas().inner(model) is model  # alone, with no warning
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    with pytest.raises(InputError, match="num_replicas is 2, but the process group has 3"):
        Replicas(2).inner(model)
