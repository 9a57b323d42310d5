"""Molecules from the pickle files that ZINC is published as, without executing anything.

A pickle is a program: it may import any function and call it. What a list of molecules needs is
numbers, text, lists, dictionaries, and tensors; of tensors, a pickle names the functions that make
one and the one that reads its numbers from bytes, what older pickles write bytes with, and the kind
of its empty dictionary of hooks. These five names stand for functions of ours that do nothing but
that (the last for `dict`), and no other name can be said. The bytes of a tensor are a few pickles
again, which may name nothing but the type of the numbers, and the numbers themselves.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..errors import InputError

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # what torch.save began a file with until 1.6
_DTYPES = {
    "BoolStorage": "?",
    "ByteStorage": "<u1",
    "CharStorage": "<i1",
    "ShortStorage": "<i2",
    "IntStorage": "<i4",
    "LongStorage": "<i8",
    "HalfStorage": "<f2",
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
}


def read_pickled_tensors(path: Path) -> Any:
    """What a pickle of numbers, text, lists, dictionaries and torch tensors on the CPU holds.

    Tensors become NumPy arrays, integers in 8 bits where they fit.

    Raises:
        InputError: it holds anything else, which is not loaded, or is damaged.
    """
    try:
        with path.open("rb") as file:
            return _TensorUnpickler(file).load()
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged pickle raises almost anything
        words = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{path} cannot be read ({words}): delete it and fetch it again"
        ) from error


class _Maker:
    """Something that a pickle may call; without attributes that it could set."""

    __slots__ = ()


class _Storage(_Maker):
    """For torch.storage._load_from_bytes: the numbers of a tensor, [n]."""

    __slots__ = ()

    def __call__(self, data: bytes) -> np.ndarray:
        file = io.BytesIO(data)
        for expected in (_MAGIC, _PROTOCOL):
            if _Unpickler(file).load() != expected:
                raise pickle.UnpicklingError("a tensor is not in torch's older format")
        _Unpickler(file).load()  # on what machine it was made
        dtype, size = _StorageUnpickler(file).load()
        _Unpickler(file).load()  # the list of the storages' names, one
        file.read(8)  # the size, again
        return np.frombuffer(data, dtype, size, file.tell())


class _Tensor(_Maker):
    """For torch._utils._rebuild_tensor: an array of a shape from the numbers."""

    __slots__ = ()

    def __call__(
        self, storage: np.ndarray, offset: int, size: Any, stride: Any, *_: Any
    ) -> np.ndarray:
        end = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        steps = (offset, *size, *stride)
        if min(steps) < 0 or not all(type(step) is int for step in steps):
            raise pickle.UnpicklingError("a tensor has an impossible shape")
        if 0 in size:
            return np.zeros(size, storage.dtype)
        if end >= len(storage) or math.prod(size) > len(storage):  # a stride may be 0
            raise pickle.UnpicklingError("a tensor is larger than its numbers")
        strides = [step * storage.itemsize for step in stride]
        array = np.ndarray(size, storage.dtype, storage, offset * storage.itemsize, strides)
        fits = array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255
        return array.astype(np.uint8 if fits else array.dtype, copy=True)


class _Bytes(_Maker):
    """For _codecs.encode: bytes, as pickles of Python 2's protocol write them."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"bytes are encoded in {encoding!r}")
        return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Reads plain values: lists, dictionaries, numbers, text."""

    allowed: ClassVar[dict[tuple[str, str], Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it wants {module}.{name}, which could execute code"
            ) from None


class _TensorUnpickler(_Unpickler):
    allowed: ClassVar = {
        ("torch._utils", "_rebuild_tensor"): _Tensor(),
        ("torch._utils", "_rebuild_tensor_v2"): _Tensor(),
        ("torch.storage", "_load_from_bytes"): _Storage(),
        ("_codecs", "encode"): _Bytes(),
        ("collections", "OrderedDict"): dict,  # a tensor's hooks: none
    }


class _StorageUnpickler(_Unpickler):
    """Reads what storage is meant: the type of its numbers, and how many there are."""

    allowed: ClassVar = {("torch", name): dtype for name, dtype in _DTYPES.items()}

    def persistent_load(self, pid: Any) -> tuple[str, int]:
        kind, dtype, _, place, size, *view = pid
        if kind != "storage" or place != "cpu" or dtype not in _DTYPES.values() or any(view):
            raise pickle.UnpicklingError(f"a tensor is kept in an unknown way: {pid}")
        return dtype, size
