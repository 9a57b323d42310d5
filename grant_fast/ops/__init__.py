"""The operators: checks, dispatch, and their registration with PyTorch."""

from .operators import (
    autocasts,
    check_features,
    embed,
    embedded_flex_conv,
    flex_conv,
    hops_product,
    is_one_kernel,
    readout,
    spmm,
    takes_network,
)

__all__ = [
    "autocasts",
    "check_features",
    "embed",
    "embedded_flex_conv",
    "flex_conv",
    "hops_product",
    "is_one_kernel",
    "readout",
    "spmm",
    "takes_network",
]
