"""One file for a packed dataset: safetensors, so flat tensors and text, memory-mapped, no code."""

import json
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from ..batches.layout import PackedCSR
from ..errors import InputError
from ..files import atomic_path, cannot_read, check_name, likely
from ..tasks import Level
from .packing import all_finite

if TYPE_CHECKING:
    from .packed import PackedGraphs

FORMAT = "grant_fast.PackedGraphs"
VERSION = 1
_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save(graphs: "PackedGraphs", path: str | os.PathLike[str]) -> None:
    """Write `graphs` to `path`, whole or not at all."""
    names = ("x", "y", "ptr", "ids", "edge_attr")
    tensors = {name: getattr(graphs, name) for name in names}
    for name, csr in (("adj", graphs.adj), ("adj_t", graphs.adj_t)):
        if csr is not None:
            tensors |= {f"{name}.{field}": value for field, value in csr._asdict().items()}
    if graphs.scale.dtype != torch.float32 and not graphs.x.is_floating_point():
        tensors["scale"] = graphs.scale  # whose dtype may stand nowhere else
    there = {name: t.detach().cpu() for name, t in tensors.items() if t is not None}
    save_tensors(there, graphs.y_level, path, graphs.meta)


class Spool:
    """An array on disk that others are appended to along its first axis, on its way into a file.

    It has no name: nothing is left of it, even by a process that is killed.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self.dtype = torch.float32
        self.shape: tuple[int, ...] = (0,)
        self.crc32 = 0

    def append(self, values: np.ndarray) -> None:
        """Write an array of the first one's dtype and trailing shape."""
        content = np.ascontiguousarray(values)
        self._file.write(content.data)
        self.crc32 = zlib.crc32(content.data, self.crc32)
        self.dtype = torch.from_numpy(values).dtype
        self.shape = (self.shape[0] + len(values), *values.shape[1:])

    def copy_to(self, file: IO[bytes]) -> None:
        """Write all of it to `file`."""
        self._file.seek(0)
        shutil.copyfileobj(self._file, file, 1 << 24)

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def save_tensors(
    tensors: Mapping[str, Tensor | Spool],
    level: Level,
    path: str | os.PathLike[str],
    meta: dict[str, Any],
) -> None:
    """Write the tensors of a `PackedGraphs` to `path`, whole or not at all.

    The safetensors library wants all of a file in memory; its format is a length in 8 bytes, a
    JSON header, and the tensors one after another (https://huggingface.co/docs/safetensors).

    Args:
        tensors: named as `save` names them; on the CPU.
        level: what a row of y belongs to.
        meta: of the `PackedGraphs`.
    """
    # The widest first: so each begins at a multiple of its width, as whoever maps it needs.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    crcs = {
        name: values.crc32 if isinstance(values, Spool) else zlib.crc32(content(values))
        for name, values in ordered
    }
    metadata = {"format": FORMAT, "version": str(VERSION), "y_level": level}
    try:
        metadata |= {"meta": json.dumps(meta), "crc32": json.dumps(crcs)}
    except TypeError as error:
        raise InputError(
            f"the graphs' meta cannot be written ({error}): it may hold texts, numbers, lists and "
            "dicts"
        ) from error
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, values in ordered:
        begin, end = end, end + math.prod(values.shape) * values.dtype.itemsize
        facts = {"shape": values.shape, "data_offsets": (begin, end)}
        header[name] = {"dtype": _KINDS[values.dtype], **facts}
    metadata["header_crc32"] = _checksum(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in ordered:
            if isinstance(values, Spool):
                values.copy_to(file)
            else:
                file.write(content(values))


def _checksum(header: dict[str, Any]) -> str:
    return str(zlib.crc32(json.dumps(header).encode()))


def content(values: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, as a file has them."""
    flat = values.contiguous().as_strided((values.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def load(cls: type["PackedGraphs"], path: str | os.PathLike[str], verify: bool) -> "PackedGraphs":
    """Memory-map `path`, check that it is what it says, and wrap it; see `PackedGraphs.load`."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    check_name(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: give a packed file in it")
    if not path.is_file():
        raise InputError(
            f"there is no packed file {path}, such as `grant-fast pack` makes: {likely(path)}"
        )
    try:
        with open(path, "rb"):
            pass  # safetensors calls a file that may not be read missing
    except OSError as error:
        raise cannot_read(path, error) from error
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_format(metadata, path)
            tensors = {name: _own(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(
            f"{path} is not a packed dataset, or is truncated: pack it again"
        ) from error
    try:
        if verify:
            _check_header(path)
            _check_content(tensors, json.loads(metadata["crc32"]))
            _check_finite(tensors)
        return _assemble(cls, tensors, metadata)
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(f"{path} is damaged ({error}): pack it again") from error


def _own(values: Tensor) -> Tensor:
    """The same, but if empty apart: it would begin where the file's next one does, of another
    dtype, and `torch.save` would refuse both."""
    return values if values.numel() else values.clone()


def _check_format(metadata: dict[str, str], path: Path) -> None:
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path} is not a packed dataset: make one with `grant-fast pack`")
    if metadata.get("version") != str(VERSION):
        raise InputError(
            f"{path} has format version {metadata.get('version')}, but this grant_fast reads "
            f"{VERSION}: pack it again"
        )


def _check_header(path: Path) -> None:
    """Compare what the file says of itself, such as the split, with what was written."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    if header["__metadata__"].pop("header_crc32", None) != _checksum(header):
        raise ValueError("its description is not what was written")


def _check_content(tensors: dict[str, Tensor], crcs: dict[str, int]) -> None:
    """Compare the tensors with what was written."""
    for name, crc in crcs.items():
        if zlib.crc32(content(tensors[name])) != crc:
            raise ValueError(f"{name} is not what was written")


def _check_finite(tensors: dict[str, Tensor]) -> None:
    """Refuse the numbers that packing refuses, which training would carry into every weight."""
    for name in ("x", "adj.weight", "adj_t.weight"):
        values = tensors.get(name)
        if values is not None and values.is_floating_point() and not all_finite(values):
            raise ValueError(f"{name} holds NaN or infinity")


def _check_kinds(tensors: dict[str, Tensor]) -> None:
    """Refuse other shapes and dtypes than packing gives; those of places are checked with them."""
    x, y, ids = tensors["x"], tensors.get("y"), tensors["ids"]
    for name, values in tensors.items():
        if values.dtype not in _KINDS:
            raise ValueError(f"{name} is {values.dtype}")
    if x.dim() != 2:
        raise ValueError("x is no matrix of numbers")
    if y is not None:
        numbers = y.dim() == 2 and y.is_floating_point()
        classes = y.dim() == 1 and y.dtype == torch.int64
        if not (numbers or classes):
            raise ValueError("y holds neither numbers [rows, targets] nor classes [rows]")
    if ids.dtype != torch.int64 or (ids < 0).any():
        raise ValueError("ids are not whole numbers from 0 on")
    for name in ("adj.weight", "adj_t.weight"):
        if name in tensors and not tensors[name].is_floating_point():
            raise ValueError(f"{name} is not of floating point")


def _assemble(
    cls: type["PackedGraphs"], tensors: dict[str, Tensor], metadata: dict[str, str]
) -> "PackedGraphs":
    x, ptr, y = tensors["x"], tensors["ptr"], tensors.get("y")
    num_nodes, num_graphs = x.shape[0], ptr.shape[0] - 1
    _check_kinds(tensors)
    _check_ptr("ptr", ptr, num_nodes)
    csrs = {}
    for name in ("adj", "adj_t"):
        if f"{name}.col" in tensors:
            fields = (tensors[f"{name}.rowptr"], tensors[f"{name}.col"])
            csr = PackedCSR(*fields, tensors.get(f"{name}.weight"))
            _check_ptr(f"{name}.rowptr", csr.rowptr, csr.col.shape[0])
            if csr.col.dim() != 1:
                raise ValueError(f"{name}.col is no list of places")
            if csr.weight is not None and csr.weight.shape != csr.col.shape:
                raise ValueError(f"{name}.weight does not fit its edges")
            if csr.col.dtype != torch.int32 or not _within_graphs(csr, ptr):
                raise ValueError(f"{name}.col points outside its graph")
            csrs[name] = csr
    level = metadata["y_level"]
    rows = num_graphs if level == "graph" else num_nodes
    if (y is not None and y.shape[0] != rows) or tensors["ids"].shape != (num_graphs,):
        raise ValueError("y or ids do not fit the graphs")
    meta = json.loads(metadata["meta"])
    adj, adj_t, attr = csrs["adj"], csrs.get("adj_t"), tensors.get("edge_attr")
    if adj_t is not None and not _have_same_edges(adj, adj_t, ptr):
        raise ValueError("adj_t is not the transpose of adj")
    if attr is not None and (attr.dim() not in (1, 2) or attr.shape[0] != adj.col.shape[0]):
        raise ValueError("edge_attr does not fit the edges")
    out = cls(x, y, ptr, adj, adj_t, tensors["ids"], cast(Level, level), meta, attr)
    if "scale" in tensors:
        if tensors["scale"].shape != (num_nodes,) or not tensors["scale"].is_floating_point():
            raise ValueError("scale does not fit the nodes")
        out.scale = tensors["scale"]
    # Kernels are told where all of these lie, and find one dtype there.
    together = {tensors[k].dtype for k in ("adj.weight", "adj_t.weight", "scale") if k in tensors}
    if len(together) > 1:
        raise ValueError("weights and scale are of different dtypes")
    return out


def _within_graphs(csr: PackedCSR, ptr: Tensor) -> bool:
    """Whether every column lies in its graph: one outside would read foreign memory later."""
    edge_ptr = csr.rowptr[ptr]
    full = edge_ptr.diff() > 0
    if not full.any():
        return True
    # One pass, and nothing the size of the edges: read as unsigned, a negative column is huge.
    col = csr.col.numpy().view(np.uint32)
    largest = np.maximum.reduceat(col, edge_ptr[:-1][full].numpy())
    return bool((largest < ptr.diff()[full].numpy()).all())


def _have_same_edges(adj: PackedCSR, adj_t: PackedCSR, ptr: Tensor) -> bool:
    """Whether each graph has as many edges in both, and weights in both or in none."""
    same = torch.equal(adj.rowptr[ptr], adj_t.rowptr[ptr])
    return same and (adj.weight is None) == (adj_t.weight is None)


def _check_ptr(name: str, ptr: Tensor, total: int) -> None:
    # Of a matrix [n, 1], `diff` is empty: whatever it holds would seem to ascend.
    if ptr.dim() != 1 or ptr.dtype != torch.int64:
        raise ValueError(f"{name} does not cover its {total} entries: it is no list of places")
    if ptr[0] != 0 or ptr[-1] != total or (ptr.diff() < 0).any():
        raise ValueError(f"{name} does not cover its {total} entries")
