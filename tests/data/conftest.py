"""A CSV file, and a tiny data set in the raw format that OGB publishes."""

import gzip
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

# Three molecules: C–O–N in a row, a lone C, and C–C.
_FILES = {
    "raw/num-node-list": "3\n1\n2\n1\n",
    "raw/num-edge-list": "2\n0\n1\n0\n",
    "raw/edge": "0,1\n1,2\n0,1\n",
    "raw/node-feat": "".join(f"{z},0,4,5,3,0,2,0,0\n" for z in (5, 7, 6, 5, 5, 5, 6)),
    "raw/graph-label": "0\n1\n0\n1\n",
    "split/scaffold/train": "0\n1\n",
    "split/scaffold/valid": "3\n",
    "split/scaffold/test": "2\n",
}


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Write a table of these words."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "molecules.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def write_ogb_folder() -> Callable[..., Path]:
    """Write the folder; keywords replace files, `**{"raw/edge": ""}`, or drop them with None."""

    def write(folder: Path, **changes: str | None) -> Path:
        for name, text in {**_FILES, **changes}.items():
            if text is not None:
                path = folder / f"{name}.csv.gz"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(gzip.compress(text.encode()))
        return folder

    return write


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.fixture
def write_pickle() -> Callable[..., None]:
    """Writes an object as PyTorch's tensors were pickled with Python's own pickle."""

    def write(path: Path, content: object, protocol: int = 4) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls such storages old
            path.write_bytes(pickle.dumps(content, protocol))

    return write
