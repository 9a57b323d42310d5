"""Pickles of tensors are read; whatever else a pickle may do is refused, and not done."""

import builtins
import collections
import io
import os
import pickle

import numpy as np
import pytest
import torch

from grant_fast.data.pickles import read_pickled_tensors
from grant_fast.errors import InputError

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_of_every_type_and_layout_are_read(tmp_path, write_pickle, dtype, protocol):
    matrix = torch.arange(12).reshape(3, 4).to(dtype)
    views = {
        "whole": matrix,
        "transposed": matrix.T,
        "a part": matrix[1:, 2:],
        "every second": matrix[:, ::2],
        "one number": matrix[2, 1],
        "none": matrix[:0],
        "large": (300 * torch.arange(3)).to(dtype) if dtype == torch.int64 else matrix,
        "negative": -torch.arange(3).to(dtype) if dtype.is_signed else matrix,
    }
    path = tmp_path / "a.pickle"
    write_pickle(path, [views, "text", 7, (1.5, None)], protocol)
    found, *rest = read_pickled_tensors(path)
    assert rest == ["text", 7, (1.5, None)]
    for name, tensor in views.items():
        np.testing.assert_array_equal(found[name], tensor.numpy(), err_msg=name)


class Runs:
    """Unpickled, calls what it is told to."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def nested(payload):
    """The bytes of a tensor, but for the storage something else."""
    return b"".join(
        pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {}, payload, [])
    )


class Storage:
    """A tensor's numbers with any bytes."""

    def __init__(self, data):
        self.data = data

    def __reduce__(self):
        return torch.storage._load_from_bytes, (self.data,)


@pytest.mark.parametrize(
    "attack",
    [
        lambda path: Runs(os.system, f"touch {path}"),
        lambda path: Runs(builtins.exec, f"open({str(path)!r}, 'w')"),
        lambda path: Runs(builtins.eval, f"open({str(path)!r}, 'w')"),
        lambda path: Runs(builtins.open, str(path), "w"),
        lambda path: Runs(builtins.getattr, Runs(__import__, "os"), "system"),
        lambda path: Runs(torch.load, str(path)),
        lambda path: Storage(nested(Runs(os.system, f"touch {path}"))),
        lambda path: Storage(pickle.dumps(Runs(os.system, f"touch {path}"))),
        lambda path: collections.Counter("ab"),
        lambda path: np.zeros(3),
    ],
)
def test_whatever_else_is_refused_before_it_runs(tmp_path, attack):
    mark, path = tmp_path / "mark", tmp_path / "a.pickle"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps([attack(mark)], protocol))
        with pytest.raises(InputError, match=r"a\.pickle cannot be read .*delete it and fetch it"):
            read_pickled_tensors(path)
        assert not mark.exists()


def test_the_attacks_above_do_work_where_nobody_refuses(tmp_path):
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps(Runs(os.system, f"touch {mark}")))
    assert mark.exists()


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((5,), (1,), 0),
        ((2,), (9,), 0),
        ((2,), (1,), 3),
        ((2,), (-1,), 1),
        ((2,), (1,), -1),
        ((2**40,), (0,), 0),
    ],
)
def test_a_tensor_beyond_its_numbers_is_refused(tmp_path, write_pickle, size, stride, offset):
    class Tensor:
        def __reduce__(self):
            storage = torch.arange(4).storage()
            hooks = collections.OrderedDict()
            function = torch._utils._rebuild_tensor_v2
            return function, (storage, offset, size, stride, False, hooks)

    path = tmp_path / "a.pickle"
    write_pickle(path, Tensor())
    with pytest.raises(InputError, match="a tensor"):
        read_pickled_tensors(path)


def test_attributes_of_what_may_be_called_cannot_be_set(tmp_path):
    stream = io.BytesIO()
    stream.write(b"\x80\x02ctorch._utils\n_rebuild_tensor\n")  # the function itself
    stream.write(b"N}X\x08\x00\x00\x00__call__K\x01s\x86b.")  # BUILD it with (None, {…: 1})
    path = tmp_path / "a.pickle"
    path.write_bytes(stream.getvalue())
    with pytest.raises(InputError, match="cannot be read"):
        read_pickled_tensors(path)


def test_an_arrays_state_cannot_be_set(tmp_path, write_pickle):
    """NumPy would take a pickle's word for what an array is, if that could name a dtype."""
    path = tmp_path / "a.pickle"
    write_pickle(path, torch.ones(2), 2)
    state = b"K\x02\x85X\x03\x00\x00\x00|O8\x89T\x10\x00\x00\x00" + bytes(16)
    path.write_bytes(path.read_bytes()[:-1] + b"(" + state + b"tb.")  # BUILD with four of them
    with pytest.raises(InputError, match=r"must be numpy\.dtype, not str"):
        read_pickled_tensors(path)


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", b"\x80\x04]"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.pickle cannot be read"):
        read_pickled_tensors(path)
