"""A loop of one's own takes the same steps recorded: on the CPU, where a tape is the CUDA graph."""

import copy
import gc
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.graph import get_gradient_edge

from grant_fast import AtomEncoder, FlexGCN, InputError, PackedGraphs, record_steps
from grant_fast.ops import dispatch
from grant_fast.teaching import graph_losses, loss
from grant_fast.training import recording
from tests.rings import make_dataset
from tests.training.runs import same

EPOCHS, SIZE = 5, 10
DATA = make_dataset()
TRAIN = DATA.split["train"][:16]  # batches of 10 and 6


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch):
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model):
    parameters = list(model.parameters())
    rate = torch.tensor(0.05, device=parameters[0].device)
    # The gradient of a bias before a norm is 0 but for rounding, which a smaller eps would blow up.
    return torch.optim.Adam(parameters, rate, eps=1e-3, fused=True)


class Loop:
    """A loop over shuffled batches, whose steps are recorded if asked for."""

    def __init__(self, make_optimizer=sgd, recorded=False, device="cpu"):
        self.graphs = copy.copy(DATA.graphs).to(device)
        self.graphs.y = (self.graphs.y - 300) / 50
        torch.manual_seed(0)
        self.model = FlexGCN(3, 4, 2, orders=[3, 2], norm="batch_norm").to(device)
        if not recorded and device == "cpu":
            self.model.backend = "auto"  # the interpreter takes its time
        self.optimizer = make_optimizer(self.model)
        self.weights = torch.linspace(0.5, 2, len(self.graphs), device=device)
        self.values = []
        self.step = self._take
        if recorded:
            given = self.model, self.optimizer, self.graphs, SIZE
            self.step = record_steps(*given, ids=TRAIN)(self._take)

    def _take(self, batch):
        losses, labels = graph_losses(self.model(batch), batch.y, DATA.task)
        value = (self.weights[batch.ids] * losses).sum() / labels.sum()
        self.optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return value

    def run(self, between=lambda loop, epoch: None):
        order = torch.Generator().manual_seed(1)
        for epoch in range(EPOCHS):
            between(self, epoch)
            for ids in TRAIN[torch.randperm(len(TRAIN), generator=order)].split(SIZE):
                self.values.append(self.step(self.graphs.batch(ids)))
        return self


def assert_alike(loop, other):
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
    close(torch.stack(loop.values), torch.stack(other.values))
    for name, value in other.model.state_dict().items():
        close(loop.model.state_dict()[name], value, msg=name)


def halve(loop, epoch):
    for group in loop.optimizer.param_groups:
        group["lr"] *= 0.5 if epoch == 3 else 1


def fill(loop, epoch):
    loop.optimizer.param_groups[0]["lr"].fill_(0.05 / (1 + epoch))


def freeze(loop, epoch):
    loop.model.convs[0].requires_grad_(epoch < 3)


def freeze_norm(loop, epoch):
    loop.model.train()
    loop.model.norms[0].train(epoch < 3)


def relabel(loop, epoch):
    if epoch == 3:
        loop.graphs.y = 1 - loop.graphs.y


def reload(loop, epoch):
    if epoch == 3:
        loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))
        loop.model.load_state_dict({k: 0.9 * v for k, v in loop.model.state_dict().items()})


def reload_uncapturable(loop, epoch):
    """As of a checkpoint that a CPU wrote."""
    if epoch == 3:
        state = copy.deepcopy(loop.optimizer.state_dict())
        for group in state["param_groups"]:
            group["capturable"] = False
        loop.optimizer.load_state_dict(state)


def forget_less(loop, epoch):
    loop.model.norms[0].momentum = 0.1 if epoch < 3 else 0.3


def watch(loop, epoch):
    if epoch == 3:
        loop.model.norms[0].register_forward_hook(lambda *_: None)


def replace(loop, epoch):
    if epoch == 3:
        loop.model.convs[0].weight.data = loop.model.convs[0].weight.data * 0.9


@pytest.mark.parametrize(
    ("between", "recordings"),
    [
        (lambda loop, epoch: None, 2),  # of the usual batches, and of the last
        (halve, 4),
        (fill, 2),
        (freeze, 4),
        (freeze_norm, 2),
        (relabel, 4),
        (reload, 4),
        (replace, 4),
        (forget_less, 4),
        (watch, 2),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_recorded_steps_are_those_of_a_plain_loop(request, between, recordings):
    # PyTorch's SGD would read a rate that is a tensor.
    make_optimizer = adam if between is fill else sgd
    plain = Loop(make_optimizer).run(between)
    tapes = request.getfixturevalue("tapes")
    recorded = Loop(make_optimizer, recorded=True).run(between)
    assert_alike(recorded, plain)
    assert len(tapes) == recordings


def test_an_optimizer_that_counts_in_python_is_not_recorded(tapes):
    class Slowing(torch.optim.SGD):
        def step(self):
            (group,) = self.param_groups
            for parameter in group["params"]:
                count = self.state[parameter]["step"] = self.state[parameter].get("step", 0) + 1
                parameter.data.sub_(parameter.grad, alpha=0.05 / count)

    make = lambda model: Slowing(model.parameters(), lr=1.0)  # noqa: E731
    plain, recorded = Loop(make).run(), Loop(make, recorded=True).run()
    assert_alike(recorded, plain)
    assert not tapes


def test_what_cannot_be_recorded_is_done_as_it_comes(monkeypatch, request):
    plain = Loop().run()
    request.getfixturevalue("tapes")
    record = recording.record

    def in_vain(work, device):
        record(work, device)  # which is undone, but for gradients that nobody filled
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recording, "record", in_vain)
    with pytest.warns(UserWarning, match="could not record a step"):
        recorded = Loop(recorded=True).run()
    assert_alike(recorded, plain)


@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_without_a_gpu_the_function_is_called_as_it_is(monkeypatch, backend):
    monkeypatch.setenv("GRANT_FAST_BACKEND", backend)
    plain, recorded = Loop(), Loop(recorded=True).run()
    plain.model.backend = None
    plain.run()
    assert same(plain.model.state_dict(), recorded.model.state_dict())
    assert not recorded.step.is_replaying


def test_steps_of_any_network_may_be_given():
    """Of one that the kernels do not know, too."""
    linear = torch.nn.Linear(3, 2)
    optimizer, graphs = sgd(linear), DATA.graphs

    @record_steps(linear, optimizer, graphs, batch_size=4)
    def step(batch):
        value = linear(batch.x).square().mean()
        value.backward()
        optimizer.step()
        return value

    first, second = (step(graphs.batch(range(4))) for _ in range(2))
    assert second < first and not step.is_replaying


def test_nothing_that_autograd_made_outlives_a_step(monkeypatch):
    """As of the trainer's steps: a recording fails where a parameter's node is kept."""
    graph = SimpleNamespace(replay=lambda: None)
    monkeypatch.setattr(recording, "record", lambda work, device: (graph, work()))
    monkeypatch.setattr("grant_fast.training.loop.recording_device", lambda _: torch.device("cpu"))
    loop = Loop()
    parameters = list(loop.model.parameters())

    def marks():
        return [get_gradient_edge(parameter).node.metadata for parameter in parameters]

    @record_steps(loop.model, loop.optimizer, loop.graphs, 5)
    def step(batch):
        value = loss(loop.model(batch), batch.y, DATA.task)
        for each in marks():
            each["of a step"] = True
        assert all("of a step" in each for each in marks())
        value.backward()
        loop.optimizer.step()
        return value, loop.model(batch)

    kept = []
    for _ in range(4):
        kept.append(step(loop.graphs.batch(range(5))))
        assert not any("of a step" in each for each in marks())
    assert step.is_replaying and kept


def test_what_a_step_gives_no_later_step_changes(tapes):
    loop = Loop(recorded=True)
    optimizer, task, given = loop.optimizer, DATA.task, []

    @record_steps(loop.model, optimizer, loop.graphs, 50)
    def step(batch):
        pred = loop.model(batch)
        value = loss(pred, batch.y, task)
        value.backward()
        optimizer.step()
        return value, pred, None

    for _ in range(5):
        given.append(step(loop.graphs.batch(slice(None))))
    assert len(tapes) == 1 and step.is_replaying
    for value, pred, nothing in given:
        assert nothing is None and not pred.requires_grad and not value.requires_grad
        torch.testing.assert_close(value, loss(pred, loop.graphs.y, task))
    assert len({float(value) for value, *_ in given}) == 5


def test_steps_are_counted_where_they_can_be_recorded(tapes):
    model = Loop().model
    optimizer, other = torch.optim.Adam(model.parameters()), sgd(model)
    optimizer.state[model.convs[0].bias] = {"step": torch.tensor(3.0, dtype=torch.float64)}
    for each in (optimizer, other):
        step = record_steps(model, each, DATA.graphs, SIZE)(lambda batch: None)
        with pytest.raises(InputError, match="has not called"):
            step(DATA.graphs.batch(range(SIZE)))
    assert optimizer.param_groups[0]["capturable"] and "capturable" not in other.param_groups[0]
    assert optimizer._warned_capturable_if_run_uncaptured  # which PyTorch reads
    assert optimizer.state[model.convs[0].bias]["step"] == 3


@pytest.mark.parametrize("why", ["reads", "autocast", "autocast of atoms"])
def test_a_step_that_needs_the_rows_of_nodes_is_not_recorded(tapes, why):
    loop = Loop(recorded=True)
    graphs, model, optimizer = loop.graphs, loop.model, loop.optimizer
    if why.endswith("atoms"):
        x = torch.randint(2, (graphs.num_nodes, 2))
        graphs = PackedGraphs(x, graphs.y, graphs.ptr, graphs.adj, graphs.adj_t)
        model = FlexGCN(4, 4, 2, orders=[3, 2], encoder=AtomEncoder(4, (2, 2)))
        optimizer = sgd(model)

    @record_steps(model, optimizer, graphs, 5)
    def step(batch):
        with torch.autocast("cpu", enabled=why != "reads"):
            value = loss(model(batch).float(), batch.y, DATA.task)
        if why == "reads":
            value = value + batch.x.mean()
        value.backward()
        optimizer.step()
        return value

    with pytest.warns(UserWarning, match="without being recorded, which is slower: a recorded"):
        values = [float(step(graphs.batch(range(5)))) for _ in range(4)]
    assert not tapes and len(set(values)) == 4
    assert isinstance(step.failure, InputError) and step.failure.__traceback__ is None


def test_a_norm_that_the_kernels_do_not_know_never_counts_padding(tapes):
    """Though its room was made while they knew it."""

    def forget_momentum(loop, epoch):
        if epoch == 3:
            loop.model.norms[0].momentum = None

    plain, loop = Loop().run(forget_momentum), Loop(recorded=True)
    with pytest.warns(UserWarning, match="without being recorded.* norms that only the kernels"):
        loop.run(forget_momentum)
    assert_alike(plain, loop)
    assert len(tapes) == 2


def test_a_step_is_never_taken_twice(tapes):
    loop = Loop(recorded=True)

    @record_steps(loop.model, loop.optimizer, loop.graphs, 5)
    def step(batch):
        loss(loop.model(batch), batch.y, DATA.task).backward()
        loop.optimizer.step()
        return batch.x.mean()

    with pytest.raises(InputError, match=r"has no x of its batch.*: ask for it before opt"):
        step(loop.graphs.batch(range(5)))


def test_optimizers_and_steps_let_go_of_each_other():
    loop = Loop(recorded=True)
    step = weakref.ref(loop.step)
    loop.step(loop.graphs.batch(range(5)))
    optimizer = loop.optimizer
    loop.step = None
    gc.collect()
    assert step() is None and optimizer.state


def test_wrong_steps_are_refused():
    loop = Loop()
    given = loop.model, loop.optimizer, loop.graphs
    with pytest.raises(InputError, match="batch_size=0: give a whole number of at least 1"):
        record_steps(*given, 0)
    with pytest.raises(InputError, match="there is no graph 40"):
        record_steps(*given, 5, ids=[40])
    step = record_steps(*given, 5)(loop.step)
    for other in (DATA.graphs.batch([1, 2]), loop.graphs, "ids"):
        with pytest.raises(InputError, match=r"call the step with graphs\.batch\(positions\)"):
            step(other)
    forward = record_steps(*given, 5)(lambda batch: loop.model(batch).sum().backward())
    with pytest.raises(InputError, match=r"has not called optimizer\.step\(\)"):
        forward(loop.graphs.batch([1, 2]))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
@pytest.mark.skipif(dispatch.is_interpreting(), reason="kernels are interpreted here")
@pytest.mark.filterwarnings("default")  # a driver's remarks are no failure of ours
@pytest.mark.parametrize(
    "between", [halve, fill, freeze, relabel, reload, reload_uncapturable, replace, forget_less]
)
@pytest.mark.parametrize("make_optimizer", [sgd, adam])
def test_on_a_gpu_recorded_steps_are_those_of_a_plain_loop(between, make_optimizer):
    between = halve if between is fill and make_optimizer is sgd else between
    plain = Loop(make_optimizer, device="cuda").run(between)
    recorded = Loop(make_optimizer, recorded=True, device="cuda").run(between)
    assert_alike(recorded, plain)
    assert recorded.step.is_replaying
