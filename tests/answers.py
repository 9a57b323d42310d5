"""What a model called with PyG's tensors gives, beside PyTorch's operators in float64."""

import copy

import torch


def answers(model, x, *others):
    """The output, and the gradients of x and all parameters, in the dtype of the model."""
    leaf = x.clone().requires_grad_() if x.is_floating_point() else None
    out = model(x if leaf is None else leaf, *others)
    wanted = [*([] if leaf is None else [leaf]), *model.parameters()]
    weights = torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape).cos()
    return [out, *torch.autograd.grad((out * weights).sum(), wanted)]


def exact(model, x, edges, weight, *others):
    """The same by PyTorch's operators in float64."""
    double = copy.deepcopy(model).double()
    x = x.double() if x.is_floating_point() else x
    return answers(double, x, edges, None if weight is None else weight.double(), *others)


def close(got, want):
    # Up to rounding of the largest: a bias before a batch norm has a gradient of 0, a sum of many.
    scale = max([1.0, *(float(t.detach().abs().max()) for t in want if t.numel())])
    for actual, expected in zip(got, want, strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5 * scale)
