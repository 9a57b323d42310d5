"""What is learned: the kind of target, where it sits, and how many outputs that takes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from .errors import InputError, whole_number

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["regression", "binary", "multiclass", "multilabel"]
Level = Literal["graph", "node"]
NOT_MEASURED = -100  # the class index that stands for a missing label, as in torch's cross entropy


@dataclass(frozen=True)
class Task:
    """A supervised task on graphs.

    Targets are float32 `[rows, T]` with NaN for "not measured" (regression, binary, multilabel) or
    int64 `[rows]` with -100 for "not measured" (multiclass); a row is a graph or a node by `level`.

    Args:
        kind: the family of loss and residual.
        level: whether a target belongs to a graph or to a node.
        num_outputs: columns of the network's output: the number of targets (regression), 1
            (binary), the number of classes (multiclass) or of labels (multilabel).
        names: the targets' (or classes') names, for display; a string is one name. One name of
            several classes is their target's.

    Raises:
        InputError: an unknown kind or level, or outputs or names that do not go with the kind.
    """

    kind: Kind
    level: Level = "graph"
    num_outputs: int = 1
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = (self.names,) if isinstance(self.names, str) else self.names
        object.__setattr__(self, "names", tuple(map(str, names)))  # of NumPy's, only here
        if self.kind not in get_args(Kind):
            raise InputError(
                f"unknown task {self.kind!r}: choose one of {', '.join(get_args(Kind))}"
            )
        if self.level not in get_args(Level):
            raise InputError(f"unknown level {self.level!r}: choose 'graph' or 'node'")
        # Strings of NumPy's, or of an enumeration, become plain ones.
        object.__setattr__(self, "kind", str.__str__(self.kind))
        object.__setattr__(self, "level", str.__str__(self.level))
        if self.kind == "multiclass" and self.num_outputs == 1:
            raise InputError("a multiclass task has an output for each class: give num_outputs")
        least = 2 if self.kind == "multiclass" else 1
        count = whole_number("num_outputs", self.num_outputs, least)
        object.__setattr__(self, "num_outputs", count)
        of_targets = self.kind in ("regression", "multilabel")
        if of_targets and len(self.names) not in (0, self.num_outputs):
            raise InputError(
                f"names has {len(self.names)} of {self.num_outputs} targets: name each one, or none"
            )
        if self.kind == "binary" and self.num_outputs != 1:
            raise InputError(
                f"a binary task has one output, not {self.num_outputs}: use 'multiclass' for one "
                "output per class, or 'multilabel' for several labels"
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names; () where there are no classes, or they have none."""
        named = self.kind == "multiclass" and len(self.names) == self.num_outputs
        return self.names if named else ()


def measured(y: "Tensor", task: Task) -> "Tensor":
    """Which entries of `y` are labels: bool, of the shape of `y`."""
    return y != NOT_MEASURED if task.kind == "multiclass" else y == y  # NaN is not


def fits(y: "Tensor", level: Level, task: Task) -> bool:
    """Whether targets of this level have the form that a task asks for."""
    if level != task.level:
        return False
    if task.kind == "multiclass":
        return y.dim() == 1 and not y.is_floating_point()
    return y.dim() == 2 and y.is_floating_point() and y.shape[1] == task.num_outputs


def has_labels_outside(mask: "Tensor", y: "Tensor | None") -> bool:
    """Whether rows of `y` that are not in the mask have labels, or may have."""
    if y is None or getattr(mask, "ndim", 0) != 1 or y.shape[:1] != mask.shape:
        return True
    rest = y[~mask.bool()]
    if len(rest) == 0:
        return False
    if rest.is_floating_point():
        return not bool(rest.isnan().all())
    return rest.dim() > 1 or bool((rest != NOT_MEASURED).any())  # only class numbers can be missing


def check_task(task: Any) -> None:
    """Refuse what is no `Task`, such as its bare kind (InputError)."""
    if not isinstance(task, Task):
        kind = task if task in get_args(Kind) else "multiclass"
        outputs = ", num_outputs=2" if kind.startswith("multi") else ""
        raise InputError(f'task is {task!r}: give a Task, e.g. Task("{kind}"{outputs})')
