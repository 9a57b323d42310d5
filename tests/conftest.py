"""What every test may ask for."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import benchmarks  # noqa: F401  # finds the kernels where nothing was installed
from grant_fast.reference import accept_sparse_csr
from tests.interpreter import IS_MISSING, hasten

# OGB looks for newer releases in threads at its import, if it finds this module; without a network
# one of them warns, and a warning is an error here, in whichever test happens to be running.
sys.modules["outdated"] = None  # type: ignore[assignment]

# A shell's background jobs ignore Ctrl-C, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

if IS_MISSING:  # what tests the kernels and their launches, one and all
    collect_ignore = ["kernels", "emulator"]
    collect_ignore += [f"benchmarks/test_{part}.py" for part in ("checks", "tune")]
    collect_ignore += [f"training/test_{part}.py" for part in ("loop", "recording")]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--emulate",
        choices=["sm_80", "sm_90"],
        help="compile the kernels for this GPU, and run that: see tests/emulator",
    )


# Triton decides when a kernel is defined whether to interpret it.
def pytest_configure(config: pytest.Config) -> None:
    """Kernels run in Triton's interpreter, whatever the machine, but for these two."""
    if config.option.emulate:
        from tests.emulator.device import emulate

        emulate(config.option.emulate)
    elif config.option.markexpr != "cuda":
        os.environ["TRITON_INTERPRET"] = "1"
        if not IS_MISSING:
            hasten()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    other = "interpreted" if config.option.emulate else "emulated"
    config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker(other)])
    items[:] = [item for item in items if not item.get_closest_marker(other)]


@pytest.fixture(scope="session", autouse=True)
def sparse_tensors_are_known() -> None:
    """Of the first in a process torch warns, which would fail whichever test made it."""
    accept_sparse_csr()


@pytest.fixture(autouse=True)
def no_hazards(pytestconfig: pytest.Config) -> Iterator[None]:
    """What an emulated GPU noticed beside the results fails a test."""
    yield
    if pytestconfig.option.emulate:
        from tests.emulator.device import HAZARDS

        noticed = dict(HAZARDS)
        HAZARDS.clear()
        assert not noticed


@pytest.fixture(autouse=True)
def sound_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """After most errors of a GPU everything fails: no other test shall in this process."""
    yield
    if request.node.get_closest_marker("cuda") and torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            if "PYTEST_XDIST_WORKER" in os.environ:
                os._exit(86)  # the next worker goes on
            pytest.exit(f"the device is in no state to go on: {error}", returncode=86)


SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Fills the disk: from then on a function that writes fails, `os.fsync` or another one."""

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill(function: str = "os.fsync") -> None:
        monkeypatch.setattr(function, full)

    return fill


@pytest.fixture
def double_is_usual() -> Iterator[None]:
    """New tensors are float64, unless they say otherwise."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors as small as those of most tests only make threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real molecules that may lie beside the checkout."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real molecules are not beside this checkout")
    return SHARED_DATA
