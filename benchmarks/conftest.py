"""Options and fixtures of the suite; `python -m benchmarks.device` gives them all."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from grant_fast.devices import indexed

from . import cases, ceilings
from .data import SCALES, Store
from .measure import Bench, is_fatal, short, trace

#: How a process ends whose device is in no state to go on.
EXIT_FATAL = 86
#: How one ends that has no time for the next case.
EXIT_LATE = 87
EXIT_FAILED = 1  # pytest's own, where a case has failed


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("grant_fast's benchmarks")
    group.addoption("--on", default="cpu", metavar="DEVICE", help="cpu or cuda")
    group.addoption("--scale", default="tiny", choices=SCALES, help="sizes of the data")
    group.addoption("--sets", type=Path, help="a folder for the packed data sets")
    group.addoption("--hiv", type=Path, help="hiv.csv, or a packed file of it, for molhiv")
    group.addoption("--budget", type=float, default=1.0, help="seconds of rounds a case")
    group.addoption("--only", type=Path, help="a file with the names of the cases to run")
    group.addoption("--records", type=Path, help="where every event is written, a line each")
    group.addoption("--claims", type=Path, help="a folder where others say what they have begun")
    group.addoption("--no-kernels", action="store_true", help="leave the Triton kernels out")
    group.addoption("--until", type=float, help="when to stop, in seconds of the Unix clock")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    wanted = metafunc.config.getoption("only")
    found = {case.name: case for case in cases.suite(metafunc.config.getoption("scale"))}
    if wanted is not None:
        found = {name: found[name] for name in wanted.read_text().splitlines()}
    metafunc.parametrize("case", found.values(), ids=list(found))


def claim(folder: Path, name: str) -> Path:
    """The file that says that somebody has begun a case."""
    return folder / f"{quote(name, safe='')}.begun"


class Records:
    """The suite's diary: one JSON object a line, on disk before the next thing happens.

    Args:
        path: of the diary, if one is wanted.
        claims: a folder that several processes share which go through the same cases.
    """

    def __init__(self, path: Path | None, claims: Path | None = None) -> None:
        self._file = None if path is None else path.open("a", encoding="utf-8")
        self._claims = claims

    def begin(self, name: str) -> bool:
        """Note that a case begins; False where another process has begun it."""
        if self._claims is not None:
            try:
                claim(self._claims, name).touch(exist_ok=False)
            except FileExistsError:
                return False
        self.write("begin", name=name)
        return True

    def write(self, event: str, **values: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"event": event, "at": time.time(), **values}) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def failed(self, name: str, error: Exception) -> None:
        """Note a failure; after a CUDA error nothing in this process can be trusted."""
        self.write("end", name=name, error=short(error), trace=trace(error))
        if is_fatal(error):
            os._exit(EXIT_FATAL)


@pytest.fixture(scope="session")
def records(pytestconfig: pytest.Config) -> Iterator[Records]:
    option = pytestconfig.getoption
    with closing(Records(option("records"), option("claims"))) as records:
        yield records


@pytest.fixture(scope="session")
def store(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Store:
    option = pytestconfig.getoption
    device = indexed(option("on"))
    folder = option("sets") or tmp_path_factory.mktemp("sets")
    return Store(folder, option("scale"), device, option("hiv"), not option("no_kernels"))


@pytest.fixture(scope="session")
def bench(pytestconfig: pytest.Config, store: Store, records: Records) -> Bench:
    limits = ceilings.measure(store.device)
    records.write("ceilings", values=limits)
    return Bench(store.device, pytestconfig.getoption("budget"), limits["copy bytes/s"])
