"""What guards a batch: it shows copies of its dataset, and a model reads the dataset itself."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..caching import kept, kept_property, writes
from ..errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..graphs.flat import FlatGraphs

#: PyG's names of what a batch has.
NAMES = frozenset({"x", "y", "ptr", "batch", "edge_index", "edge_weight", "edge_attr", "ids"})
_READ_ONLY = NAMES | {"num_graphs", "num_nodes", "num_edges", "sizes", "positions"}
_CHANGED = (
    "a GraphBatch is read-only, and a model reads {} from the dataset itself: give the model "
    "your own tensors, model(x, edge_index, edge_weight, batch=batch.batch, "
    "batch_size=len(batch))"
)


class _Copy(NamedTuple):
    """Rows of a tensor of the dataset, and how often each of the two was written to by then."""

    rows: Tensor
    writes: int
    of: Tensor
    writes_of: int

    @property
    def is_written(self) -> bool:
        asked = self.rows.requires_grad and self.rows.is_leaf
        return asked or writes(self.rows) != self.writes

    def is_of(self, tensor: Tensor) -> bool:
        return self.of is tensor and self.writes_of == writes(tensor)


class ReadOnly:
    """A batch of `graphs` whose attributes nobody may set, and which knows if they were written
    to."""

    graphs: "FlatGraphs"
    #: What is made anew for each batch, and read-only all the same.
    _tables: tuple[str, ...] = ("ptr", "sizes", "batch", "positions")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "y":
            raise InputError(
                "a GraphBatch is read-only: keep other targets in a variable of your own, or set "
                "y of the PackedGraphs"
            )
        if name in _READ_ONLY:
            raise InputError(_CHANGED.format(name))
        super().__setattr__(name, value)

    def check_unchanged(self, *, but: str | None = None) -> None:
        """Refuse features, edges or tables that were written to, or that require a gradient: no
        model would see it (InputError). One attribute may be what it is. What is kept of a
        dataset's features is forgotten where these were written to."""
        self.graphs.forget_written()
        for name, copied in tuple(self._copies.items()):  # another thread may add to them
            if name not in ("y", "edge_attr", but) and copied.is_written:
                raise InputError(_CHANGED.format(name))
        for name in self._tables:
            if name in vars(self) and writes(vars(self)[name]):
                raise InputError(_CHANGED.format(name))

    @kept_property
    def _copies(self) -> dict[str, _Copy]:
        return {}

    def _copy_of(self, name: str, of: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What `make` makes of a tensor of the dataset; anew where that was set or written to, or
        learns, since such rows serve one backward pass."""
        if torch.compiler.is_compiling():
            return self._copied_uncompiled(name, of, make)
        return self._copied(name, of, make)

    def _copied(self, name: str, of: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        found = self._copies.get(name)
        if found is None or of.requires_grad or not found.is_of(of):
            rows = make(of) if of.requires_grad else kept(make)(of)
            found = self._copies[name] = _Copy(rows, writes(rows), of, writes(of))
        return found.rows

    # No compiler knows how often a tensor was written to. (The first call imports one.)
    _copied_uncompiled = torch._disable_dynamo(_copied)

    def __copy__(self) -> "Self":
        out = object.__new__(type(self))
        vars(out).update(vars(self))
        return out

    def __getstate__(self) -> dict[str, Any]:
        """What a deep copy, or one for another process, takes over: of copies what was written to
        them, since a copied tensor counts its writes from elsewhere."""
        copies, own = tuple(self._copies.items()), dict(vars(self))
        for name in self._tables:  # made anew where they are as they were made
            if name in own and not writes(own[name]):
                del own[name]
        written = {n: c._replace(writes=-1) for n, c in copies if c.is_written and c.is_of(c.of)}
        return own | {"_copies": written}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for name, copied in tuple(self._copies.items()):
            self._copies[name] = copied._replace(writes_of=writes(copied.of))
