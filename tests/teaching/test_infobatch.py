"""InfoBatch: its rule, its expectation, and its state."""

import pytest
import torch

from grant_fast.errors import InputError
from grant_fast.teaching.infobatch import ANNEALED, PRUNED, InfoBatchSampler


def served(sampler):
    return sorted(i for batch in sampler for i in batch)


def taught(sampler, epoch, losses):
    """One epoch in which every graph that is served has its loss of `losses`."""
    sampler.select(None, epoch)
    for batch in sampler:
        sampler.observe(batch, losses[torch.tensor(batch)])


def test_nothing_is_skipped_before_losses_are_known_nor_in_the_last_eighth():
    losses = torch.arange(100.0)
    sampler = InfoBatchSampler(range(100), 7, epochs=80)
    taught(sampler, 0, losses)
    assert served(sampler) == list(range(100)) and len(sampler) == 15
    sampler.select(None, 1)
    assert len(served(sampler)) < 100
    assert int((1 - ANNEALED) * 80) == 70
    sampler.select(None, 69)
    assert len(served(sampler)) < 100
    sampler.select(None, 70)
    assert served(sampler) == list(range(100))
    assert torch.equal(sampler.weights(range(100)), torch.ones(100))


def test_half_of_the_graphs_below_the_mean_loss_are_skipped_and_the_others_count_twice():
    losses = torch.cat([torch.ones(60), torch.full((40,), 10.0)])[torch.randperm(100)]
    sampler = InfoBatchSampler(range(100), 10, epochs=100)
    taught(sampler, 0, losses)
    assert sampler.select(None, 1) is False
    kept = torch.tensor(served(sampler))
    low = losses[kept] == 1
    assert int(low.sum()) == 30 and int((~low).sum()) == 40
    weights = sampler.weights(kept)
    assert torch.equal(weights, torch.where(low, 1 / (1 - PRUNED), 1.0))
    # The weighted sum of any number over the kept low graphs has the expectation of all.
    assert float((weights * losses[kept]).sum()) == float(losses.sum())


@pytest.mark.parametrize("low", [1, 2, 3, 7])
def test_an_odd_number_of_low_graphs_keeps_the_expectation_too(low):
    losses = torch.cat([torch.ones(low), torch.full((4,), 10.0)])
    sampler = InfoBatchSampler(range(low + 4), 3, epochs=100)
    taught(sampler, 0, losses)
    sampler.select(None, 1)
    kept = torch.tensor(served(sampler))
    assert len(kept) == low + 4 - low // 2
    assert float((sampler.weights(kept) * losses[kept]).sum()) == pytest.approx(float(losses.sum()))


def test_every_low_graph_has_its_turn_and_scores_are_of_the_last_visit():
    losses = torch.cat([torch.ones(6), torch.full((4,), 10.0)])
    sampler = InfoBatchSampler(range(10), 5, epochs=1000)
    taught(sampler, 0, losses)
    counts = torch.zeros(10)
    for epoch in range(1, 401):
        sampler.select(None, epoch)
        counts[torch.tensor(served(sampler))] += 1
    assert torch.equal(counts[6:], torch.full((4,), 400.0))
    assert (counts[:6] - 200).abs().max() < 60
    sampler.observe([0], torch.tensor([99.0]))
    sampler.select(None, 401)
    assert float(sampler.weights([0])) == 1.0


def test_positions_are_those_of_the_dataset_and_resuming_serves_the_same():
    ids = [3, 17, 4, 90, 41, 8]
    losses = torch.zeros(91).index_fill(0, torch.tensor([3, 90]), 5.0)
    first, second = (InfoBatchSampler(ids, 4, epochs=50, seed=3) for _ in range(2))
    taught(first, 0, losses)
    second.load_state_dict(first.state_dict())
    for sampler in (first, second):
        sampler.select(None, 1)
    assert list(first) == list(second) == [batch.tolist() for batch in first.batches()] != []
    assert first.weights(ids).tolist() == [1.0, 2.0, 2.0, 1.0, 2.0, 2.0]
    assert set(served(first)) < set(ids) and {3, 90} <= set(served(first))
    with pytest.raises(InputError, match="had 6 graphs but this one has 5"):
        InfoBatchSampler(ids[:5], 4, epochs=50).load_state_dict(first.state_dict())


def test_what_is_skipped_depends_on_the_seed_and_the_order_on_the_epoch():
    losses = torch.cat([torch.ones(30), torch.full((4,), 10.0)])
    first, second = (InfoBatchSampler(range(34), 4, epochs=100, seed=seed) for seed in (0, 1))
    for sampler in (first, second):
        taught(sampler, 0, losses)
        sampler.select(None, 1)
    assert not torch.equal(first.selected, second.selected)
    orders = []
    for epoch in (98, 99):  # of all graphs
        first.select(None, epoch)
        orders.append(list(first))
    assert orders[0] != orders[1]


def test_a_state_stays_as_it_was_saved_while_the_sampler_goes_on():
    losses = torch.arange(4.0)
    sampler = InfoBatchSampler(range(4), 2, epochs=50)
    taught(sampler, 0, losses)
    state = sampler.state_dict()
    for _ in range(2):
        taught(sampler, 1, losses + 9)
        sampler.select(None, 2)
        assert torch.equal(state["scores"], losses)
        sampler.load_state_dict(state)


def test_losses_noted_before_a_state_is_loaded_do_not_overwrite_it():
    sampler = InfoBatchSampler(range(4), 2, epochs=50)
    state = sampler.state_dict()
    sampler.observe(range(4), torch.full((4,), 9.0))
    sampler.load_state_dict(state)
    sampler.select(None, 1)
    assert torch.equal(sampler.scores, state["scores"])


def test_scores_hold_no_graph_of_the_losses():
    sampler = InfoBatchSampler(range(4), 2, epochs=8)
    sampler.observe(range(4), 2 * torch.rand(4, requires_grad=True))
    sampler.select(None, 0)
    assert not sampler.scores.requires_grad


def test_weights_are_float32_whatever_is_usual(double_is_usual):
    sampler = InfoBatchSampler(range(4), 2, epochs=50)
    sampler.select(None, 0)
    assert sampler.weights([1, 2]).dtype == sampler.scores.dtype == torch.float32


@pytest.mark.parametrize(
    ("ids", "size", "epochs", "name"),
    [
        ([], 1, 1, "ids"),
        ([1], 0, 1, "batch_size=0"),
        ([1], 1.5, 1, "batch_size=1.5"),
        ([1], 1, 0, "epochs=0"),
    ],
)
def test_nothing_to_do_is_refused(ids, size, epochs, name):
    with pytest.raises(InputError, match=f"{name}.*at least 1"):
        InfoBatchSampler(ids, size, epochs=epochs)
