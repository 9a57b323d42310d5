"""A case: answers first, then turns; a failure is named, or raised where it is our own."""

import copy
import gc
import sys
import time
import weakref
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from benchmarks import data, epochs, gradients, networks, packing, scores
from benchmarks.epochs import _recorded, epoch_work
from benchmarks.layers import layer_work
from benchmarks.measure import Bench, WrongAnswer, measure, relative_error
from benchmarks.settings import Setting
from benchmarks.timing import Clock
from benchmarks.work import Side, Work
from grant_fast import GraphBatch, PackedGraphs, native
from grant_fast.native import loading
from grant_fast.teaching import picking
from grant_fast.training import loop, recording
from tests.interpreter import needs_triton

pytestmark = pytest.mark.filterwarnings("ignore")  # PyG's own, at its import
CPU = torch.device("cpu")
BENCH = Bench(CPU, budget=0.05, copy_rate=1e9)
ONE = torch.ones(3, dtype=torch.float64)


def pedantic(target, setup, rounds):
    for _ in range(rounds):
        setup()
        target()


def side(seconds: float = 0.001, value: float = 1.0) -> Side:
    return Side(lambda: time.sleep(seconds), lambda: [value * ONE.float()])


def race(work: Work) -> dict:
    return measure(work, BENCH, Clock(), pedantic)


def broken() -> Side:
    raise ImportError("no such package")


def test_peers_that_fail_are_named_and_the_others_raced():
    sides = {"ours": side, "slow": lambda: side(0.11), "wrong": lambda: side(value=1.1)}
    found = race(Work("ours", {**sides, "absent": lambda: broken()}, lambda: [ONE], bytes=1000))
    assert found["sides"]["wrong"]["failed"].startswith("WrongAnswer: off by 1.0e-01")
    assert found["sides"]["absent"]["failed"] == "ImportError: no such package"
    assert "in broken" in found["sides"]["absent"]["trace"]
    assert set(found["ratios"]) == {"slow"} and found["ratios"]["slow"] > 3
    assert found["sides"]["slow"]["rounds"] == 3  # more would have eaten the others' time
    assert found["sides"]["slow"]["spread"] > 0
    assert found["sides"]["ours"]["rounds"] >= 7
    mine = found["sides"]["ours"]["seconds"]
    assert found["fraction of copy bandwidth"] == pytest.approx(1000 / mine / 1e9)


def test_every_tensor_has_a_tolerance_of_its_own():
    answer = [ONE.float(), 1.001 * ONE.float()]
    sides = {"ours": lambda: Side(lambda: time.sleep(0.001), lambda: answer)}
    race(Work("ours", sides, lambda: [ONE, ONE], tolerances=[1e-4, 2e-3]))
    with pytest.raises(WrongAnswer, match=r"off by 1\.0e-03"):
        race(Work("ours", sides, lambda: [ONE, ONE], tolerances=[2e-3, 1e-4]))


def test_our_own_failure_is_an_error():
    with pytest.raises(WrongAnswer):
        race(Work("ours", {"ours": lambda: side(value=1.1)}, lambda: [ONE]))
    with pytest.raises(ImportError):
        race(Work("ours", {"ours": broken}, lambda: [ONE]))


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> data.Store:
    return data.Store(Path(tmp_path_factory.mktemp("sets")), "tiny", CPU)


def test_a_layer_and_all_its_peers_agree(store):
    pytest.importorskip("torch_geometric")
    work = layer_work(store.graphs("graphon").batch(slice(None)), 5, 4, True, False)
    found = race(work)["sides"]
    assert {"auto", "vendor SpMM", "paper's formulation", "TAGConv, edge_index"} <= set(found)
    assert not {name: side["failed"] for name, side in found.items() if "failed" in side}
    assert all(values["error"] < 1e-5 for values in found.values())
    x = work.facts["bytes of x"]
    assert found["auto"]["held bytes"] == x  # one copy, whatever the order
    assert found["vendor SpMM"]["held bytes"] == 4 * x


def test_a_pyg_that_cannot_be_used_costs_its_own_sides_alone(store, monkeypatch):
    pytest.importorskip("torch_geometric")
    monkeypatch.setitem(sys.modules, "benchmarks.peers.tag", None)
    monkeypatch.delattr("benchmarks.peers.tag", raising=False)
    found = race(layer_work(store.graphs("graphon").batch(slice(None)), 5, 3, True, True))
    lost = {name for name, values in found["sides"].items() if "failed" in values}
    assert lost == {name for name in found["sides"] if name.startswith("TAGConv")} != set()
    assert {"vendor SpMM", "paper's formulation"} <= set(found["ratios"])


def rearranged(data: list, graphs: PackedGraphs) -> PackedGraphs:
    return graphs.subset([*range(1, len(graphs)), 0])


def turned(data: list, graphs: PackedGraphs) -> PackedGraphs:
    edges = data[0].edge_index
    edges[:, 0] = edges[:, 0].flip(0)
    return PackedGraphs.from_data_list(data, missing_labels=True)


def relabelled(data: list, graphs: PackedGraphs) -> PackedGraphs:
    graphs.y[0] = 9 - graphs.y[0]
    return graphs


@pytest.mark.parametrize("spoilt", [rearranged, turned, relabelled])
def test_what_is_packed_must_be_what_was_given(store, spoilt, monkeypatch):
    pytest.importorskip("torch_geometric")
    graphs = store.graphs("graphon")
    found = race(packing.pack_work(graphs))["sides"]
    assert all(values["error"] < 1e-6 for values in found.values())
    right = PackedGraphs.from_data_list

    class Spoilt(PackedGraphs):
        @classmethod
        def from_data_list(cls, data, **kwargs):
            copies = [copy.deepcopy(one) for one in data]
            return spoilt(copies, right(data, **kwargs))

    monkeypatch.setattr(packing, "PackedGraphs", Spoilt)
    with pytest.raises(WrongAnswer):
        race(packing.pack_work(graphs))


def test_a_collated_batch_must_hold_the_graphs_that_were_drawn(store, monkeypatch):
    pytest.importorskip("torch_geometric")
    found = race(packing.collate_work(store.graphs("graphon"), 2))["sides"]
    assert all(values["error"] < 1e-6 for values in found.values())
    monkeypatch.setattr(PackedGraphs, "batch", lambda graphs, ids: GraphBatch(graphs, ids.flip(0)))
    with pytest.raises(WrongAnswer):
        race(packing.collate_work(store.graphs("graphon"), 2))


@pytest.fixture
def kernels(monkeypatch):
    """What the CPU's kernels are called for by a function, as a counter."""
    if native.build() is None:
        pytest.skip("the CPU kernels were not compiled")
    called, library = [], loading.library()

    class Noted:
        def __getattr__(self, name):
            called.append(name)
            return getattr(library, name)

    def of(run):
        called.clear()
        run()
        return Counter(called)

    monkeypatch.setattr(loading, "library", Noted)
    return of


TIMED = [networks.step_work, networks.infer_work, partial(epoch_work, loader=False)]


@pytest.mark.parametrize("recipe", ["ogbg-molhiv", "gen-cls"])
@pytest.mark.parametrize("work", TIMED, ids=["step", "infer", "epoch"])
def test_what_is_checked_are_the_kernels_that_are_timed(store, work, recipe, kernels):
    side = work(Setting.of(recipe, store)).sides["auto"]()
    side.run()  # packs what is packed once
    timed, checked = kernels(side.run), kernels(side.answer)
    assert timed and checked.keys() >= timed.keys()
    if work in TIMED[:2]:  # an epoch is checked in evaluation mode, too
        assert checked == timed
    assert ("network_backward" in checked) == (work is not networks.infer_work)


def test_a_check_leaves_the_network_as_it_was(store):
    setting = Setting.of("ogbg-molhiv", store)
    before = copy.deepcopy(setting.model)
    networks.step_work(setting).sides["auto"]().answer()
    assert relative_error([*setting.model.buffers()], [*before.buffers()]) == 0
    assert [part.training for part in setting.model.modules()] == [
        part.training for part in before.modules()
    ]
    assert all(p.grad is None for p in setting.model.parameters())


@pytest.mark.parametrize("way", range(3))
def test_the_cpus_networks_are_checked_in_training_on_all_ways(store, way, kernels, monkeypatch):
    pytest.importorskip("torch_geometric")
    from benchmarks import cpu
    from benchmarks.peers import pyg

    dataset = store.dataset("ogbg-molhiv")
    graphs, task, listed = dataset.graphs, dataset.task, pyg.data_list(dataset.graphs)
    ours, theirs = cpu.MOLHIV.models(atoms=True)
    models = [ours, cpu.OnTensors(ours), cpu.swapped(theirs)]
    check = lambda: cpu.check(ours, models[1:], graphs, listed, task, 50)  # noqa: E731
    batch = graphs.batch([0, 1, 2])
    step = cpu.training(ours, iter([batch]), task)
    assert kernels(check).keys() >= kernels(step).keys() >= {"network_forward", "network_backward"}

    kind = type(models[way])
    right = kind.forward

    def wrong(model, batch):  # right as it goes, and wrong as it comes back
        out = right(model, batch)
        if out.requires_grad and out.dtype == torch.float32:
            out.register_hook(lambda grad: 1.01 * grad)
        return out

    monkeypatch.setattr(kind, "forward", wrong)
    with pytest.raises(WrongAnswer):
        check()


@pytest.mark.parametrize("threads", [1, 2])
def test_where_there_is_a_core_for_it_pygs_loader_has_a_worker(store, threads, monkeypatch):
    pytest.importorskip("torch_geometric")
    from benchmarks import cpu
    from benchmarks.report import PYGS

    dataset = store.dataset("ogbg-molhiv")
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(cpu, "REST", 0.0)
    monkeypatch.setattr(cpu.native, "build", lambda: None)  # no stages
    small = replace(cpu.MOLHIV, batch_size=20)
    found = cpu.run(small, dataset.graphs, dataset.task, rounds=1)
    for what in ("train", "score"):
        times = [found[key] for name in PYGS if (key := f"{what} {name}, ms") in found]
        assert len(times) == threads
        ratio = min(times) / found[f"{what} FlexGCN, packed, ms"]
        assert found[f"{what} FlexGCN, packed, ratio"] == pytest.approx(ratio)
        assert found[f"{what} PyG, spread"] >= 0


def test_an_epoch_must_see_every_graph_once(store, monkeypatch):
    loader = pytest.importorskip("torch_geometric.loader")
    work = lambda: epoch_work(Setting.of("ogbg-molhiv", store), loader=True)  # noqa: E731
    found = race(work())["sides"]
    assert all(values["error"] < 1e-5 for values in found.values())

    class Short(loader.DataLoader):
        def __init__(self, data, **kwargs):
            super().__init__(data[1:], **kwargs)

    monkeypatch.setattr(loader, "DataLoader", Short)
    found = race(work())["sides"]
    assert found["PyG, DataLoader"]["failed"].startswith("WrongAnswer")


@needs_triton
def test_a_recorded_step_has_the_gradient_of_a_plain_one(store, monkeypatch):
    def record(work, device):
        return SimpleNamespace(replay=lambda: replayed.append(1)), work()

    replayed = []
    monkeypatch.setattr(recording, "record", record)
    monkeypatch.setattr(loop, "recording_device", lambda model: CPU)
    small = {"hidden_channels": (9,), "orders": (2, 2), "dropout": (0.0,)}
    setting = Setting.of("ogbg-molhiv", store, batch_size=4, **small)
    made = networks.recorded_step(setting)
    exact = gradients.exactly_in_training(setting, setting.recordable)
    assert relative_error(made.answer(), exact) < 1e-5
    for _ in range(3):
        made.run()
    assert len(replayed) == 4  # one before; two steps came before that one, as they are
    with pytest.raises(ValueError, match="not recorded"):
        networks.recorded_step(Setting.of("gen-cls", store))
    monkeypatch.setattr(recording, "record", Mock(side_effect=RuntimeError("not permitted")))
    with (
        pytest.warns(UserWarning, match="could not record"),
        pytest.raises(RuntimeError, match="did not record"),
    ):
        networks.recorded_step(setting)


@needs_triton
def test_steps_that_cannot_be_recorded_do_not_keep_others_from_being(store, monkeypatch):
    setting = Setting.of("ogbg-molhiv", store, batch_size=4)
    odd = setting.checked[:1]  # as a graph of more nodes than bits hold
    fits = torch.ones(len(setting.graphs), dtype=torch.bool).index_fill(0, odd, False)
    monkeypatch.setitem(vars(setting.graphs), "bits", setting.graphs.bits._replace(fits=fits))
    assert len(setting.recordable) == 4 and not torch.isin(odd, setting.recordable)

    good, bad = (setting.graphs.batch(ids) for ids in (setting.recordable, setting.checked))
    batches = iter([good, bad, bad, bad, good, bad, good, good])
    monkeypatch.setattr(networks, "shuffled", lambda *_: batches)
    graph = SimpleNamespace(replay=lambda: None)
    monkeypatch.setattr(recording, "record", lambda work, device: (graph, work()))
    monkeypatch.setattr(loop, "recording_device", lambda model: CPU)
    networks.recorded_step(setting).run()


def test_what_a_recorded_epoch_reads_and_writes_lives_as_long_as_it(monkeypatch):
    model = torch.nn.Linear(2, 1)
    weight = weakref.ref(model.weight)
    graph = SimpleNamespace(replay=lambda: None)
    monkeypatch.setattr(epochs, "record", lambda work, device: (graph, work()))
    replay = _recorded(partial(model, torch.ones(1, 2)), CPU)
    del model
    gc.collect()
    replay()
    assert weight() is not None
    del replay
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("recipe", ["ogbg-molhiv", "gen-cls"])
def test_a_look_must_score_right_and_choose_the_best(store, recipe, monkeypatch):
    work = lambda: scores.score_work(Setting.of(recipe, store), "torch")  # noqa: E731
    found = race(work())
    assert found["ours"] == "torch"
    assert all(values["error"] < 1e-6 for values in found["sides"].values())
    right = picking.select_graphs
    monkeypatch.setattr(picking, "select_graphs", lambda s, m, **kw: right(-s, m))
    with pytest.raises(WrongAnswer):
        race(work())


def test_twins_for_kernels_hold_no_edge_twice(store):
    graphs = store.graphs("molecules")
    assert graphs.is_symmetric and bool(graphs.bits.fits.all())
    batch = graphs.batch(slice(None))
    assert (batch.edge_index[0] != batch.edge_index[1]).all()


@pytest.mark.parametrize("name", ["ogbg-molhiv", "gen-cls"])
def test_pygs_list_holds_the_same_graphs(store, name):
    pytest.importorskip("torch_geometric")
    from benchmarks.peers import pyg

    graphs = store.dataset(name).graphs
    for position, one in enumerate(pyg.data_list(graphs)[:9]):
        batch = graphs.batch([position])
        assert torch.equal(one.x, batch.x if one.x.is_floating_point() else batch.x.long())
        assert torch.equal(one.edge_index, batch.edge_index)
        assert torch.equal(one.y, batch.y)
