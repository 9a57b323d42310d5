"""What works on a machine, and what does not."""

import re
from importlib.metadata import PackageNotFoundError

import grant_fast
from grant_fast.cli.doctor import _kernels, examine
from tests.cli.runs import run, succeeds


def test_doctor_checks_this_machine():
    result = succeeds("doctor")
    assert re.search(rf"grant_fast +{re.escape(grant_fast.__version__)}\n", result.stdout)
    assert re.search(r"cpu kernels +(not )?compiled", result.stdout)
    assert "\nok FlexGCN on cpu" in result.stdout and "\nNO" not in result.stdout


def test_doctor_goes_on_where_a_gpu_does_not_work(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "broken")
    monkeypatch.setattr("grant_fast.cli.doctor._compute", without_gpu)
    result = run("doctor")
    assert result.exit_code == 1
    assert "\nNO FlexGCN on cuda:0            no driver; reinstall torch for" in result.stdout
    assert "\nok checkpoint written and read" in result.stdout
    assert "usual layers on cpu" in result.stdout and "layers on cuda" not in result.stdout


def test_the_kernels_of_larger_graphs_are_checked_too(monkeypatch):
    planes = []

    def compute(device, backend, graphs=None):
        if graphs is not None:
            tiles = graphs.batch(slice(None)).tiles
            larger = enumerate(() if tiles is None else tiles.larger, 1)
            planes.append([many for many, found in larger if found.shape[1]])
        return "fine"

    monkeypatch.setattr("grant_fast.cli.doctor._compute", compute)
    assert _kernels("cpu") == "fine"
    assert planes == [[2], [3], [4], []]


def test_the_cpu_is_checked_where_the_kernels_are_asked_of_a_gpu(monkeypatch):
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "NO FlexGCN on cpu" in run("doctor").stdout  # there is none
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "broken")
    result = run("doctor")
    assert "ok FlexGCN on cpu" in result.stdout and "NO FlexGCN on cuda:0" in result.stdout
    assert "usual layers on cpu" in result.stdout


def without_gpu(device, backend):
    if device != "cpu":
        raise RuntimeError("no driver")
    return "right"


def test_doctor_says_what_is_broken_and_how_to_mend_it(full_disk):
    full_disk()
    result = run("doctor")
    assert result.exit_code == 1
    assert "NO checkpoint written and read" in result.stdout
    assert "No space left on device; free some space" in result.stdout


def test_tritons_build_for_amd_is_found(monkeypatch):
    def version(name):
        if name != "triton-rocm":
            raise PackageNotFoundError
        return "3.5.1"

    monkeypatch.setattr("grant_fast.errors.version", version)
    said = {check.name: check.detail for check in examine()}
    assert (said["triton"], said["torch"]) == ("3.5.1", "missing")
    assert said["ogb"] == "not installed (SMILES and ogbg-mol*)"
