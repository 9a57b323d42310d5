"""The builds of the CPU kernels, each of which the tests here run."""

import ctypes
from importlib.util import find_spec

import pytest
import torch

from grant_fast import native

RUNS_HERE = native.BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("_cpu",))


@pytest.fixture(params=[name for name in RUNS_HERE if find_spec(f"grant_fast.native.{name}")])
def build(request, monkeypatch):
    """Each build that this CPU can run, in place of the one that it would choose."""
    found = find_spec(f"grant_fast.native.{request.param}")
    loaded = ctypes.CDLL(found.origin)
    monkeypatch.setattr(native.loading, "library", lambda: loaded)
