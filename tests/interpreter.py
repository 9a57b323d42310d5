"""Triton's interpreter, without what it does again and again, and spends much of its time on.

It replaces each function of the language for a launch, and once more for every call of a helper; it
makes the table of NumPy's dtypes for every number of which it wants one; and it computes whether
sums and products of integers overflow, but tells nobody unless it debugs.
"""

import dataclasses
import sys
from functools import cache
from importlib.util import find_spec

import pytest

#: It is made for Linux, where tests fail without it.
IS_MISSING = sys.platform != "linux" and find_spec("triton") is None
needs_triton = pytest.mark.skipif(IS_MISSING, reason="there is no Triton")
TRITON = pytest.param("triton", marks=needs_triton)


def hasten() -> None:
    """For the rest of this process."""
    import triton.language as tl
    from triton.runtime import interpreter

    replace, dtype_of = interpreter._patch_lang, interpreter._get_np_dtype
    dtypes: dict = {}

    @cache
    def languages(function) -> list:
        """The modules of the language that a function sees, of which each is replaced apart."""
        seen = function.__globals__.values()
        return [module for module in (tl, tl.core) if any(module is value for value in seen)]

    def replace_once(function):
        if any(tl.core.is_builtin(module.load) for module in languages(function)):
            return replace(function)
        return interpreter._LangPatchScope()  # of no changes to take back

    def known_dtype(kind):
        if kind.scalar.name not in dtypes:
            dtypes[kind.scalar.name] = dtype_of(kind)
        return dtypes[kind.scalar.name]

    interpreter._patch_lang, interpreter._get_np_dtype = replace_once, known_dtype
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
