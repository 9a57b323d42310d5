"""What every test may ask for."""

from pathlib import Path

import pytest
import torch

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
