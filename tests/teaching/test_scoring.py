import copy
import math
import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import ConcatDataset, Subset

from benchmarks.memory import peak
from grant_fast import FlexGCN
from grant_fast.errors import InputError
from grant_fast.graphs import PackedGraphs
from grant_fast.tasks import Task, has_labels_outside
from grant_fast.teaching.residuals import graph_residuals
from grant_fast.teaching.scoring import score_graphs
from grant_fast.teaching.selection import select_graphs
from tests.cases import dense_graphs

REGRESSION = Task("regression")
NAN = math.nan


def one_by_one(model: nn.Module, graphs: list, task: Task) -> Tensor:
    """The plainest scores: each graph alone."""
    from torch_geometric.data import Batch

    model.eval()
    alone = [Batch.from_data_list([graph]) for graph in graphs]
    with torch.no_grad():
        return torch.cat([graph_residuals(model(b), b.y, task, b.ptr) for b in alone])


@pytest.mark.parametrize("batch_size", [1, 7, 20, 1000])
def test_scores_do_not_depend_on_how_graphs_are_batched(make_graphs, model, batch_size) -> None:
    graphs = make_graphs(20)
    scores = score_graphs(model, graphs, REGRESSION, batch_size=batch_size)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, one_by_one(model, graphs, REGRESSION), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ids", [[5, 0, 19, 5], [4, 5, 6], torch.tensor([6, 5, 4]), range(2, 9)])
def test_scores_come_in_the_order_of_ids(make_graphs, model, ids) -> None:
    graphs = make_graphs(20)
    expected = score_graphs(model, graphs, REGRESSION)[torch.as_tensor(ids)]
    packed = PackedGraphs.from_data_list(graphs)
    for dataset in (graphs, packed):
        scores = score_graphs(model, dataset, REGRESSION, ids=ids, batch_size=2)
        torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)


def test_scoring_restores_each_modules_mode_and_the_random_state(make_graphs, model) -> None:
    model.train()
    model.norm.eval()  # a frozen part stays frozen, in the midst of a training model
    before = [module.training for module in model.modules()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    score_graphs(model, make_graphs(9), REGRESSION, batch_size=4)
    assert [module.training for module in model.modules()] == before
    assert torch.get_rng_state().equal(state)
    assert all(weights[name].equal(value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_is_cached_while_scoring_serves_training_too(make_graphs) -> None:
    class Caching(nn.Linear):
        scale: Tensor | None = None

        def forward(self, batch: Any) -> Tensor:
            if self.scale is None:
                self.scale = batch.x.square().mean()
            return super().forward(batch.x) * self.scale

    graphs = make_graphs(9)
    for graph in graphs:
        graph.y = graph.x[:, 0]
    model = Caching(3, 1)
    score_graphs(model, graphs, Task("regression", "node"), batch_size=4)
    model(graphs[0]).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_mode_returns_after_a_failure_too(make_graphs, model) -> None:
    def fail(model: nn.Module, batch: Any) -> Tensor:
        assert not model.training and not torch.is_grad_enabled()
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        score_graphs(model, make_graphs(3), REGRESSION, predict=fail)
    assert all(module.training for module in model.modules())


def test_any_callable_is_a_model(make_graphs) -> None:
    graphs = make_graphs(6)
    scores = score_graphs(lambda batch: torch.zeros(batch.num_graphs), graphs, REGRESSION)
    assert scores.tolist() == [graph.y.item() for graph in graphs]


def test_a_collate_function_makes_batches_of_anything() -> None:
    def collate(numbers: list[float]) -> SimpleNamespace:
        return SimpleNamespace(y=torch.tensor(numbers))

    scores = score_graphs(
        lambda batch: 2 * batch.y, [3.0, -1.0, 0.5], REGRESSION, collate=collate, batch_size=2
    )
    assert scores.tolist() == [3.0, 1.0, 0.5]


def test_a_train_mask_is_not_passed_over_in_silence(make_graphs) -> None:
    graphs = make_graphs(3)
    for graph in graphs:
        graph.y = torch.randn(len(graph.x), 1)
        graph.train_mask = torch.arange(len(graph.x)) % 2 == 0
    task = Task("regression", "node")
    with pytest.warns(UserWarning, match="the graphs have a train_mask, .* set y to NaN"):
        score_graphs(lambda batch: batch.x[:, :1], graphs, task)
    for graph in graphs:
        graph.y[~graph.train_mask] = torch.nan  # as the warning says
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score_graphs(lambda batch: batch.x[:, :1], graphs, task)


def test_probabilities_are_not_taken_for_logits_in_silence(make_graphs) -> None:
    task, graphs = Task("multiclass", num_outputs=3), make_graphs(4)
    for graph in graphs:
        graph.y = torch.tensor([1])
    rows = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.1, 0.2, 0.7]])
    with pytest.warns(UserWarning, match="probabilities, .* return what goes into the softmax"):
        score_graphs(lambda batch: rows[: batch.num_graphs], graphs, task)
    negative = rows + torch.tensor([1.0, -1.0, 0.0])
    for logits in (rows + 1, negative, rows.log(), rows * torch.tensor([[1], [1], [1], [2]])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            score_graphs(lambda batch, f=logits: f[: batch.num_graphs], graphs, task)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # where they are what is asked for
        score_graphs(lambda batch: rows[: batch.num_graphs], graphs, task, residual="raw")


@pytest.mark.parametrize(
    ("mask", "y", "outside"),
    [
        ([True, False], [0, -100], False),
        ([True, False], [0, 1], True),
        ([True, False], [[0], [-100]], True),  # only a vector of integers holds class numbers
        ([True, False], [[0.0, 1.0], [NAN, NAN]], False),
        ([True, False], [[0.0, 1.0], [NAN, 0.0]], True),
        ([1, 0], [0.0, NAN], False),
        ([True, True], [0, 1], False),
        ([True, True], [[0], [1]], False),
        ([[True, False], [True, False]], [0, -100], True),  # several splits
        ([True, False], [0], True),
        ([True, False], 0, True),
        (True, 0, True),
    ],
)
def test_a_mask_leaves_nothing_out_where_the_rest_has_no_labels(mask, y, outside) -> None:
    assert has_labels_outside(torch.tensor(mask), torch.tensor(y)) is outside
    assert has_labels_outside(torch.tensor(mask), None)
    assert has_labels_outside([torch.tensor(mask)], torch.tensor(y))  # as PyG joins NumPy's


def test_graphs_to_score_may_be_a_mask(make_graphs, model) -> None:
    graphs = make_graphs(9)
    mask = torch.arange(9) % 3 == 0
    scores = score_graphs(model, graphs, REGRESSION)
    for ids in (mask, mask.tolist(), mask.numpy(), slice(0, 9, 3)):
        torch.testing.assert_close(score_graphs(model, graphs, REGRESSION, ids=ids), scores[mask])
    with pytest.raises(InputError, match="give one bool for each of the 9 graphs"):
        score_graphs(model, graphs, REGRESSION, ids=mask[:4])
    with pytest.raises(InputError, match=r"uint8 is a mask or positions: give mask\.bool"):
        score_graphs(model, graphs, REGRESSION, ids=mask.to(torch.uint8))


@pytest.mark.parametrize("with_ptr", [True, False])
def test_node_level_scores_from_ptr_or_from_batch(make_graphs, with_ptr) -> None:
    from torch_geometric.data import Batch

    def collate(graphs: list) -> Any:
        batch = Batch.from_data_list(graphs)
        fields = {"x": batch.x, "y": batch.y, "batch": batch.batch}
        return SimpleNamespace(**fields, **({"ptr": batch.ptr} if with_ptr else {}))

    graphs = make_graphs(7)
    for graph in graphs:
        graph.y = torch.randn(len(graph.x), 2)
    graphs[3].x, graphs[3].y = torch.empty(0, 3), torch.empty(0, 2)  # one graph without nodes
    task = Task("regression", "node", 2)
    scores = score_graphs(lambda batch: batch.x[:, :2], graphs, task, collate=collate, batch_size=4)
    expected = [
        (graph.x[:, :2] - graph.y).norm() / max(len(graph.x), 1)  # Algorithm 1: ‖f − y‖₂ / n
        for graph in graphs
    ]
    torch.testing.assert_close(scores, torch.stack(expected))


def test_multilabel_with_missing_labels(make_graphs) -> None:
    graphs = make_graphs(11)
    torch.manual_seed(1)
    for graph in graphs:
        graph.y = torch.where(torch.rand(1, 4) < 0.4, math.nan, torch.randint(2, (1, 4)).float())
    graphs[2].y[:] = math.nan
    scores = score_graphs(
        lambda batch: torch.zeros(batch.num_graphs, 4), graphs, Task("multilabel", num_outputs=4)
    )
    labels = [int((~graph.y.isnan()).sum()) for graph in graphs]
    # every measured error is ±½, so the score is ½√n / n
    assert scores.tolist() == pytest.approx([0.5 / math.sqrt(n) if n else 0.0 for n in labels])


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_integer_labels_as_pyg_users_have_them(make_graphs, shape, kind) -> None:
    graphs = make_graphs(5)
    for graph in graphs:
        graph.y = (graph.uid % 2).reshape(shape)
    outputs = 1 if kind == "binary" else 2
    scores = score_graphs(
        lambda batch: torch.zeros(batch.num_graphs, outputs), graphs, Task(kind, "graph", outputs)
    )
    assert scores.tolist() == pytest.approx([0.5 if kind == "binary" else 0.5**0.5] * 5)


class Operations(TorchDispatchMode):
    """Counts what is sent to PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize("kind", ["regression", "multilabel", "multiclass"])
def test_more_graphs_take_no_more_operations(kind, level) -> None:
    task = Task(kind, level, 3)

    def operations(size: int) -> int:
        graphs = dense_graphs((3, 1, 2, 0) * size, 3)
        rows = graphs.num_nodes if level == "node" else graphs.num_graphs
        graphs.y = (
            torch.ones(rows, dtype=torch.long) if kind == "multiclass" else torch.ones(rows, 3)
        )
        graphs.y_level = level
        predict = (
            (lambda model, b: b.x) if level == "node" else (lambda model, b: b.x[: b.num_graphs])
        )
        with Operations() as seen:
            scores = score_graphs(nn.Identity(), graphs, task, predict=predict, batch_size=10_000)
        assert len(scores) == 4 * size
        return seen.count

    assert 5 < operations(40) == operations(4)


def test_predictions_come_along_when_asked_for(make_graphs, model) -> None:
    graphs = make_graphs(9)
    ids = [8, 2, 3, 4]
    scores, pred = score_graphs(
        model, graphs, REGRESSION, ids=ids, batch_size=3, return_predictions=True
    )
    assert pred.shape == (4, 1)
    y = torch.cat([graphs[i].y for i in ids])
    torch.testing.assert_close(scores, (pred.squeeze(1) - y).abs())


def test_a_subset_of_packed_graphs_is_scored_by_its_own_positions(make_graphs) -> None:
    graphs, model = PackedGraphs.from_data_list(make_graphs(12)), FlexGCN(3, 4, 1, [2, 2])
    part = Subset(Subset(graphs, range(1, 12)), [7, 0, 3, 4])
    want = score_graphs(model, graphs, REGRESSION, ids=[8, 1, 4, 5])
    torch.testing.assert_close(score_graphs(model, part, REGRESSION), want)
    torch.testing.assert_close(score_graphs(model, part, REGRESSION, ids=[2, 0]), want[[2, 0]])

    class Doubled(Subset):
        def __getitem__(self, position):
            graph = copy.copy(super().__getitem__(position))
            graph.y = 2 * graph.y
            return graph

        def __getitems__(self, positions):
            return [self[position] for position in positions]

    raw = Doubled(make_graphs(12), [7, 0, 3, 4])
    wide = score_graphs(lambda batch: torch.zeros(4, 1), raw, REGRESSION)
    ones = torch.stack([make_graphs(12)[i].y.view(()) for i in raw.indices])
    torch.testing.assert_close(wide, 2 * ones.abs())


def test_scoring_reads_the_positions_of_a_subset_once(make_graphs) -> None:
    class Counted(Sequence):
        read = 0

        def __len__(self) -> int:
            return 300

        def __getitem__(self, where: Any) -> Any:
            if isinstance(where, slice):
                return [self[i] for i in range(*where.indices(300))]
            self.read += 1
            return range(300)[where] % 12

    graphs, model, own = PackedGraphs.from_data_list(make_graphs(12)), FlexGCN(3, 4, 1), Counted()
    want = score_graphs(model, graphs, REGRESSION).repeat(25)
    part = Subset(graphs, own)
    torch.testing.assert_close(score_graphs(model, part, REGRESSION, batch_size=3), want)
    assert own.read == 300
    ids = torch.randperm(300)
    got = score_graphs(model, part, REGRESSION, ids=ids, batch_size=3)
    torch.testing.assert_close(got, want[ids])
    assert own.read == 600


def test_nan_predictions_name_the_graph(make_graphs) -> None:
    graphs = make_graphs(9)
    graphs[6].x[0, 0] = math.nan

    def total(batch: Any) -> Tensor:
        return torch.zeros(batch.num_graphs).index_add(0, batch.batch, batch.x.sum(1))

    with pytest.raises(InputError, match=r"position 6 is NaN .*1 of 9.*lower the learning rate"):
        score_graphs(total, graphs, REGRESSION, batch_size=4)


def test_nan_predictions_name_a_packed_graph_by_its_id(make_graphs, model) -> None:
    packed = PackedGraphs.from_data_list(make_graphs(9))[[8, 7, 6]]
    nn.init.constant_(model.last.bias, math.nan)
    assert isinstance(packed, PackedGraphs)
    with pytest.raises(InputError, match="graph with id 7 is NaN"):
        score_graphs(model, packed, REGRESSION, ids=[1, 2])


def test_a_data_set_around_packed_graphs_is_scored_like_them(make_graphs, model) -> None:
    packed = PackedGraphs.from_data_list(make_graphs(9))
    twice = score_graphs(model, ConcatDataset([packed, packed]), REGRESSION, batch_size=5)
    torch.testing.assert_close(twice, score_graphs(model, packed, REGRESSION).repeat(2))


def test_a_model_may_give_all_its_outputs_in_the_same_memory(make_graphs, model) -> None:
    outputs = torch.zeros(2, 1)
    graphs = make_graphs(6)

    def reusing(model: Any, batch: Any) -> Tensor:
        return outputs.copy_(model(batch))

    want = score_graphs(model, graphs, REGRESSION, batch_size=2, return_predictions=True)
    got = score_graphs(
        model, graphs, REGRESSION, batch_size=2, predict=reusing, return_predictions=True
    )
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_collate_function_may_give_all_its_batches_in_the_same_memory() -> None:
    x, y = torch.zeros(2, 1), torch.zeros(2, 1)

    def refill(values: list[float]) -> Any:
        x.copy_(torch.tensor(values)[:, None])
        return SimpleNamespace(x=x, y=y.copy_(3 * x))

    values = [1.0, 2.0, 3.0, 4.0]
    options = {"batch_size": 2, "collate": refill}
    got = score_graphs(lambda batch: batch.x, values, REGRESSION, **options)
    assert got.tolist() == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("gives", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_hooks_keep_or_give_stays_as_it_was(make_graphs, dtype, gives) -> None:
    graphs, seen = PackedGraphs.from_data_list(make_graphs(12)).to(dtype), []
    graphs.y = torch.randint(3, (graphs.num_nodes,), generator=torch.Generator().manual_seed(0))
    task = Task("multiclass", "node", num_outputs=3)
    model = FlexGCN(3, 4, 3, [2, 2], pool=None).to(dtype)
    want = score_graphs(model, graphs, task)

    def keep(module: nn.Module, inputs: Any, out: Tensor) -> Tensor | None:
        given = out.clone() if gives else out
        seen.append((given, given.clone()))
        return given if gives else None

    model.convs[-1].register_forward_hook(keep)
    torch.testing.assert_close(score_graphs(model, graphs, task, batch_size=4), want)
    assert len(seen) == 3 and all(torch.equal(*pair) for pair in seen)


def test_a_module_that_does_more_than_note_its_mode_is_told_of_it(make_graphs, model) -> None:
    class Merging(nn.Linear):
        merged = False

        def train(self, mode: bool = True) -> "Merging":
            self.merged = not mode
            return super().train(mode)

    model.last = Merging(8, 1)
    model.others = nn.ModuleList([nn.Sequential(model.norm), nn.Sequential(model.norm)])
    for shared in (False, True):  # the mode of a module in two others, of which one has another
        model.others[0].eval()
        model.norm.train(shared)
        modes = [module.training for module in model.modules()]
        score_graphs(model, make_graphs(4), REGRESSION)
        assert model.last.training and not model.last.merged
        assert [module.training for module in model.modules()] == modes


def test_scoring_and_selecting_take_some_bytes_a_graph() -> None:
    total = 2_000_000
    x, edges = torch.zeros(total, 1), torch.empty(2, 0, dtype=torch.long)
    graphs = PackedGraphs.from_arrays(
        x, edges, torch.arange(total), torch.rand(total, 1), y_level="graph"
    )

    def teach(number: int = total) -> Tensor:
        part = None if number == total else torch.arange(number)
        scores = score_graphs(lambda batch: batch.x, graphs, REGRESSION, ids=part)
        return select_graphs(scores, len(scores) // 10)

    teach(20_000)
    taken = peak(teach, torch.device("cpu"))
    if taken is None:
        pytest.skip("only Linux says how much memory a process has taken")
    assert taken / total <= 16  # the scores themselves are 4
