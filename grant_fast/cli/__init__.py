"""The `grant-fast` command."""

from .commands import app, main

__all__ = ["app", "main"]
