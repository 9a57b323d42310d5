"""The subcommands, each in the module of its name, in the order in which the help lists them."""

from . import train, compare, reproduce, pack, predict, doctor  # isort: skip

__all__ = ["compare", "doctor", "pack", "predict", "reproduce", "train"]
