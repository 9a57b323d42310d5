"""The `grant-fast` command."""

from . import commands
from .entry import app, main

__all__ = ["app", "commands", "main"]
