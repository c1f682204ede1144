"""Operations on stacks: many devices, each with weights of its own, by batched matrix products.

Vectors have the shape (devices, rows, numbers), images (devices, channels, height, width, rows). With rows last, copies
and element-wise operations are vectorised over rows, and fast for few channels. The backward pass has two parts, as in
:mod:`adelfl.training.operations`, for the first devices of the stack. The gradient of a weight is the product of two
matrices per device, the ``factors``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.training.operations import MaxPool, Operation, Relu, Scale, first
from adelfl.training.submodel import Scaler


def is_stackable(module: nn.Module) -> bool:
    """Return whether a module has an operation here."""
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and all(s == 1 for s in (*module.stride, *module.dilation))
    return type(module) in STACK_OPERATIONS


class _Dense(Operation[nn.Linear]):
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        self.kept, turned = x, weight.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias[:, None], x, turned)

    def input_grad(self, delta: Tensor, weight: Tensor) -> Tensor:
        return torch.bmm(delta, first(weight, delta.shape[0]))

    def factors(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        return delta.transpose(1, 2), first(self.kept, delta.shape[0])

    def bias_grad(self, delta: Tensor) -> Tensor:
        return delta.sum(1)


class _Convolution(Operation[nn.Conv2d]):
    """A convolution of stride 1: the inputs of each output are copied into a column of a matrix."""

    def __init__(self, module: nn.Conv2d) -> None:
        super().__init__(module)
        self.padding = tuple(int(p) for p in module.padding)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        (kh, kw), (top, left) = self.module.kernel_size, self.padding
        if top or left:
            x = functional.pad(x, (0, 0, left, left, top, top))
        self.shape = x.shape
        windows = x.unfold(2, kh, 1).unfold(3, kw, 1).permute(0, 1, 5, 6, 2, 3, 4)
        self.kept = windows.reshape(x.shape[0], weight[0, 0].numel(), -1)
        kernel = weight.flatten(2)
        out = torch.bmm(kernel, self.kept) if bias is None else torch.baddbmm(bias[..., None], kernel, self.kept)
        return out.view(x.shape[0], -1, *windows.shape[4:])

    def input_grad(self, delta: Tensor, weight: Tensor) -> Tensor:
        (kh, kw), (top, left) = self.module.kernel_size, self.padding
        n, h, w = delta.shape[0], *delta.shape[2:4]
        columns = torch.bmm(first(weight, n).permute(0, 4, 2, 3, 1).flatten(1, 3), delta.flatten(2))
        columns = columns.view(n, kw, -1, kh, *delta.shape[2:])
        channels, height, width, rows = self.shape[1:]
        # Sum over the columns of a kernel, then over its lines.
        lines = delta.new_zeros(n, channels, kh, h, width, rows)
        for j in range(kw):
            lines[:, :, :, :, j : j + w] += columns[:, j]
        grad = delta.new_zeros(n, *self.shape[1:])
        for i in range(kh):
            grad[:, :, i : i + h] += lines[:, :, i]
        return grad[:, :, top : height - top, left : width - left]

    def factors(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        return delta.flatten(2), first(self.kept, delta.shape[0]).transpose(1, 2)

    def bias_grad(self, delta: Tensor) -> Tensor:
        return delta.flatten(2).sum(2)


class _Pool(MaxPool):
    """Max-pooling; the rows of a device act as channels, and devices and their channels as images."""

    def _images(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1).permute(0, 3, 1, 2)

    def _rows(self, images: Tensor) -> Tensor:
        rows = images.permute(0, 2, 3, 1)
        return rows.view(-1, self.channels, *rows.shape[1:])


class _Flatten(Operation[nn.Flatten]):
    """Images to vectors, as a view."""

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape[1:]
        return x if x.dim() == 3 else x.flatten(1, 3).transpose(1, 2)

    def input_grad(self, delta: Tensor) -> Tensor:
        return delta if len(self.shape) == 2 else delta.transpose(1, 2).reshape(-1, *self.shape)


STACK_OPERATIONS: dict[type[nn.Module], Any] = {
    nn.Linear: _Dense,
    nn.Conv2d: _Convolution,
    nn.ReLU: Relu,
    nn.MaxPool2d: _Pool,
    nn.Flatten: _Flatten,
    Scaler: Scale,
}
