"""A data set with its task and its split, in memory and in a packed file."""

import copy
import os
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..devices import usual_tensors
from ..errors import InputError, whole_number
from ..graphs import PackedGraphs
from ..graphs.storage import content
from ..tasks import Kind, Task, fits
from .infer import check_named_classes, make_task
from .parsing import Failure
from .splits import PARTS

_METRIC: dict[Kind, str] = {
    "regression": "mae",
    "binary": "roc_auc",
    "multilabel": "roc_auc",
    "multiclass": "accuracy",
}


def default_metric(task: Task) -> str:
    """What a task is judged by unless told otherwise; of several regressions what has no units, and
    of two classes in words what is the same in whatever proportion they occur."""
    if task.kind == "regression" and task.num_outputs > 1:
        return "r2"
    return "roc_auc" if len(task.class_names) == 2 else _METRIC[task.kind]


@dataclass
class Dataset:
    """Graphs with what is to be learned from them.

    Args:
        name: for people.
        graphs: the graphs, their `y` in the form that `task` asks for.
        task: the kind of target.
        split: positions in `graphs`, int64 and ascending, under "train", "valid" and "test".
        metric: "mae", "rmse", "r2", "roc_auc", "ap" or "accuracy".
        encoder: "atom" where x holds OGB's nine categorical columns, else None.
        smiles: of each graph of a table of molecules, by its id, as the table has it.
        skipped: rows of the file (the header is row 1) whose SMILES could not be parsed, and it; of
            an SDF (its molecules count from 1) what they are called.
        unlabelled: how many rows were left out because they hold no label.
        targets: the columns that the targets came from, where they were chosen among columns.
        left_out: columns that target="all" left out, as some of their cells are no numbers, or all
            are empty; of each what is wrong, if only a few of its cells are.
        says_parts: a column of the table that says train and test, and was not asked for.
        splitting: how the split was made, for people: random, scaffold, given (by whoever made
            this, or by a column), given train/test (which says nothing of valid), published, or
            stored in a file that does not say how.
    """

    name: str
    graphs: PackedGraphs
    task: Task
    split: dict[str, Tensor]
    metric: str
    encoder: Literal["atom"] | None = None
    smiles: dict[int, str] = field(default_factory=dict)
    skipped: list[Failure] = field(default_factory=list)
    unlabelled: int = 0
    targets: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    says_parts: str | None = None
    splitting: str = "given"

    def __repr__(self) -> str:
        sizes = {part: len(self.split[part]) for part in PARTS if part in self.split}
        return (
            f"Dataset(name={self.name!r}, graphs={self.graphs}, task={self.task}, split={sizes}, "
            f"metric={self.metric!r})"
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many graphs train, validate and test."""
        return tuple(len(self.split[part]) for part in PARTS)

    @property
    def checksum(self) -> int:
        """CRC-32 of the graphs, their targets and how many are in each part: other data, another
        number (nearly always). Of data `grouped` by parts it so says which graph is in which."""
        graphs, crc = self.graphs, zlib.crc32(str(self.sizes).encode())
        for tensor in (graphs.x, graphs.y, graphs.ptr, graphs.ids, *graphs.adj):
            if tensor is not None:
                crc = zlib.crc32(content(tensor.detach().cpu()), crc)
        return crc

    @property
    def summary(self) -> dict[str, Any]:
        """Task, split, and how many graphs train, validate, test and are missing, for a file."""
        return {
            "task": self.task.kind,
            "targets": list(self.targets),
            "split": self.splitting,
            **dict(zip(PARTS, self.sizes, strict=True)),
            "skipped": len(self.skipped),
            "unlabelled": self.unlabelled,
        }

    def check_split(self) -> None:
        """Refuse a split that is none (InputError): its parts are "train", "valid" and "test", hold
        one graph or more each, and share none."""
        self._check_positions()
        for part in PARTS:
            if len(self.split[part]) == 0:
                raise InputError(f"no graph of {self.name} is in {part}: choose another split")

    def _check_positions(self) -> None:
        """Refuse parts that are none, though they may be empty (InputError)."""
        total = self.graphs.num_graphs
        for part in PARTS:
            ids = self.split.get(part)
            if not isinstance(ids, Tensor) or ids.dim() != 1 or ids.dtype != torch.int64:
                raise InputError(
                    f"the split of {self.name} has no int64 tensor of positions as {part!r}: give "
                    "one, as in torch.tensor([0, 1])"
                )
            if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= total):
                raise InputError(
                    f"a position in {part} is not one of the {total} graphs of {self.name}: give "
                    f"positions from 0 to {total - 1}"
                )
        ids, counts = torch.cat([self.split[part].cpu() for part in PARTS]).unique(
            return_counts=True
        )
        if len(twice := ids[counts > 1]):
            raise InputError(
                f"graph {int(twice[0])} of {self.name} is in two parts of the split, or twice in "
                "one: leave it in one"
            )

    @usual_tensors
    def folds(self, count: int = 5, seed: int = 0) -> list["Dataset"]:
        """The graphs in the split, split in `count` ways for cross-validation: at random into
        `count` parts of nearly equal size, each of which is "test" once while the one before it is
        "valid".

        Scaffolds are not kept together, nor are molecules that occur several times: of data with
        many alike the figures are better than of new molecules.

        Args:
            count: of the folds, 3 or more.
            seed: for the parts.

        Raises:
            InputError: there are fewer folds than 3, or graphs than folds; or the split is none.
        """
        count = whole_number("count", count, least=3)
        seed = whole_number("seed", seed, least=0)
        self._check_positions()
        members = torch.cat([self.split[part].cpu() for part in PARTS])
        if len(members) < count:
            raise InputError(f"{len(members)} graphs cannot be in {count} folds: ask for fewer")
        members = members.sort().values
        order = torch.randperm(len(members), generator=torch.Generator().manual_seed(seed))
        parts = [members[part.sort().values] for part in order.tensor_split(count)]
        found = []
        for at, test in enumerate(parts):
            rest = torch.cat([p for i, p in enumerate(parts) if i not in (at, (at - 1) % count)])
            split = {"train": rest.sort().values, "valid": parts[at - 1], "test": test}
            found.append(replace(self, split=split, splitting="random"))
        return found

    @usual_tensors
    def grouped(self) -> "Dataset":
        """The same data with the graphs of each part side by side, so that a pass over a part reads
        the packed arrays in place instead of gathering; itself where that is so already.

        Raises:
            InputError: the split is none, see `check_split`.
        """
        self.check_split()
        order = torch.cat([self.split[part].cpu() for part in PARTS])
        if torch.equal(order, torch.arange(self.graphs.num_graphs)):
            return self
        ranges = torch.arange(len(order)).split(list(self.sizes))
        split = dict(zip(PARTS, ranges, strict=True))
        return replace(self, graphs=self.graphs.subset(order), split=split)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one packed file from which `load_dataset` and the commands restore task, split,
        metric and encoder.

        Args:
            path: ends in .gfast.

        Raises:
            InputError: `path` does not end so, or cannot be written; there are no graphs, or the
                split is none; graphs of one id are in two parts of the split.
        """
        check_packed_name(path)
        if not self.graphs.num_graphs:
            raise InputError(f"{self.name} holds no graphs: give some")
        self._check_positions()
        graphs = copy.copy(self.graphs)
        graphs.meta = graphs.meta | {
            "name": self.name,
            "task": asdict(self.task),
            "metric": self.metric,
            "encoder": self.encoder,
            "targets": list(self.targets),
            "split": _split_to_text(self.split, graphs.ids.cpu()),
            "splitting": self.splitting,
        }
        graphs.save(path)


def check_packed_name(path: str | os.PathLike[str]) -> None:
    """Refuse a name by which `load_dataset` would not know a packed file (InputError)."""
    if Path(path).suffix.lower() != ".gfast":
        raise InputError(f"cannot pack into {os.fspath(path)!r}: give a name that ends in .gfast")


def read_packed(path: Path, kind: Kind | None) -> Dataset:
    """Restore what `Dataset.save` wrote; infer what a plain `PackedGraphs.save` leaves out.

    Args:
        path: a packed file with targets.
        kind: of the task; None for the stored one.

    Raises:
        InputError: there is no such file, it is damaged or holds no targets, or `kind` does not
            fit those.
    """
    return described(PackedGraphs.load(path, verify=True), kind, str(path), path.stem)


def described(graphs: PackedGraphs, kind: Kind | None, origin: str, name: str) -> Dataset:
    """Graphs with the task, split, metric and encoder that their `meta` tells, or else their `y`.

    Args:
        graphs: with targets; they are left as they are.
        kind: of the task; None for the stored one.
        origin, name: what an error calls them, and people, if `meta` does not.

    Raises:
        InputError: as `read_packed`.
    """
    graphs = copy.copy(graphs)
    if graphs.y is None:
        raise InputError(f"{origin} holds no targets: pack it again with targets")
    if not graphs.num_graphs:
        raise InputError(f"{origin} holds no graphs: give some")
    meta: dict[str, Any] = graphs.meta
    try:
        stored = meta.get("task")
        names = tuple(stored["names"]) if stored else ()
        if stored and stored["kind"] == "multiclass" and len(names) == stored["num_outputs"]:
            check_named_classes(names, kind)
        told = Task(**{**stored, "names": names}) if stored else None
        if told and kind in (None, told.kind) and fits(graphs.y, graphs.y_level, told):
            task, metric = told, meta["metric"]
        else:
            columns = graphs.y[:1].numel()
            of_columns = names if len(names) == columns else ()  # not of classes
            task, graphs.y = make_task(graphs.y, graphs.y_level, of_columns, kind)
            metric = default_metric(task)
        split = _split_from_text(meta["split"], graphs.ids.cpu()) if "split" in meta else {}
        targets, name = tuple(meta.get("targets", ())), meta.get("name", name)
        words = (name, metric, *targets)
        if not all(isinstance(word, str) and "\0" not in word for word in words):
            raise TypeError("name, metric and targets are texts")
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise InputError(f"{origin} has a damaged description ({error}): pack it again") from error
    return Dataset(
        name=name,
        graphs=graphs,
        task=task,
        split=split,
        metric=metric,
        encoder=meta.get("encoder"),
        targets=targets,
        splitting=str(meta.get("splitting", "stored")),
    )


def first_graphs(dataset: Dataset, num_graphs: int | None) -> Dataset:
    """The first graphs, in whatever parts they are; all if None."""
    if num_graphs is None or num_graphs >= dataset.graphs.num_graphs:
        return dataset
    return replace(
        dataset,
        graphs=dataset.graphs.subset(slice(0, num_graphs)),
        split={part: p[p < num_graphs] for part, p in dataset.split.items()},
    )


def first_of_each_part(dataset: Dataset, num_graphs: int | None) -> Dataset:
    """The first graphs of each part, in the parts' proportion; all if None."""
    total = dataset.graphs.num_graphs
    if num_graphs is None or num_graphs >= total:
        return dataset
    sizes = {part: max(1, num_graphs * len(p) // total) for part, p in dataset.split.items()}
    for part in PARTS:  # what rounding leaves is for training, as far as there are graphs for it
        left = num_graphs - sum(sizes.values())
        sizes[part] = min(len(dataset.split[part]), sizes[part] + left)
    kept = {part: positions[: sizes[part]] for part, positions in dataset.split.items()}
    order = torch.cat(list(kept.values())).sort().values
    split = {part: torch.searchsorted(order, positions) for part, positions in kept.items()}
    return replace(dataset, graphs=dataset.graphs.subset(order), split=split)


# A split is stored as one letter for each id, so that it survives taking a subset.
_MOST_IDS = 50_000_000  # safetensors takes up to 100 MB of description
_LETTERS = {"train": b"t", "valid": b"v", "test": b"e"}


def _split_to_text(split: dict[str, Tensor], ids: Tensor) -> str:
    if (last := int(ids.max())) >= _MOST_IDS:
        raise InputError(
            f"a file keeps the split of graphs with ids below {_MOST_IDS:,}, and one has {last:,}: "
            "renumber the graphs with PackedGraphs.concat([dataset.graphs])"
        )
    letters = np.full(int(ids.max()) + 1, b"-", dtype="S1")
    for part in PARTS:
        mine = ids[split[part]].numpy()
        if (there := letters[mine] != b"-").any():
            raise InputError(
                f"graphs with id {mine[there.argmax()]} are in {part} and in another part: "
                "renumber the graphs with PackedGraphs.concat([dataset.graphs])"
            )
        letters[mine] = _LETTERS[part]
    return letters.tobytes().decode("ascii")


def _split_from_text(text: str, ids: Tensor) -> dict[str, Tensor]:
    letters = np.frombuffer(text.encode("ascii"), dtype="S1")
    if int(ids.max()) >= len(letters):
        raise KeyError(f"the split ends before graph {int(ids.max())}")
    mine = letters[ids.numpy()]
    return {part: torch.from_numpy(np.flatnonzero(mine == _LETTERS[part])) for part in PARTS}
