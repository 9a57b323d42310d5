"""What the tests of training share."""

from collections.abc import Callable, Iterator

import pytest
import torch

from grant_fast.training.config import RunConfig


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small only make threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def config() -> Callable[..., RunConfig]:
    """A config for tiny runs, with any settings of one's own."""

    def make(**settings) -> RunConfig:
        small = {"epochs": 6, "batch_size": 5, "hidden_channels": (4,), "device": "cpu"}
        return RunConfig(**{**small, **settings})

    return make
