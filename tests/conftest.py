"""What every test may ask for."""

import os
import sys
from pathlib import Path

import pytest
import torch

import benchmarks  # noqa: F401  # finds the kernels where nothing was installed

# OGB looks for newer releases in threads at its import, if it finds this module; without a network
# one of them warns, and a warning is an error here, in whichever test happens to be running.
sys.modules["outdated"] = None  # type: ignore[assignment]


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
