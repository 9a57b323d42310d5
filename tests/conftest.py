"""What every test may ask for."""

import os
from pathlib import Path

import pytest
import torch

# OGB looks for a newer release in a thread at its import; without a network that thread warns, and
# a warning is an error here, in whichever test happens to be running.
os.environ["OUTDATED_IGNORE"] = "1"


# Triton decides when a kernel is defined whether to interpret it.
def pytest_configure(config: pytest.Config) -> None:
    """Kernels run in Triton's interpreter, whatever the machine, but for `pytest -m cuda`."""
    if config.option.markexpr != "cuda":
        os.environ["TRITON_INTERPRET"] = "1"


SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real molecules that may lie beside the checkout."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real molecules are not beside this checkout")
    return SHARED_DATA
