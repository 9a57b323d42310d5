"""The operators: checks, dispatch, and their registration with PyTorch."""

from .operators import (
    Source,
    autocasts,
    check_features,
    embed,
    first_flex_conv,
    flex_conv,
    readout,
    reads,
    spmm,
    takes_network,
)

__all__ = [
    "Source",
    "autocasts",
    "check_features",
    "embed",
    "first_flex_conv",
    "flex_conv",
    "readout",
    "reads",
    "spmm",
    "takes_network",
]
