"""The errors a user can cause, each with the culprit and the remedy in one line."""

import importlib
from types import ModuleType


class InputError(ValueError):
    """What was given cannot be used; the message names what, where, and what to do instead."""


class MissingExtraError(ImportError):
    """A feature needs a package that is not installed; the message gives the install command."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say which extra of grant_fast brings it.

    Raises:
        MissingExtraError: the module, or something it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name or module} is needed here and is not installed: "
            f'pip install "grant_fast[{extra}]"'
        ) from error
