"""Triton kernels, one file an operator; installed as `grant_fast.kernels`."""
