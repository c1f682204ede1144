"""Operations on stacks: many devices, each with weights of its own, by batched matrix products.

Vectors have the shape (devices, rows, numbers), images (devices, channels, height, width, rows): with rows last, copies
and element-wise operations are vectorised over rows, however few the channels. The backward pass is split as in
:mod:`adelfl.training.operations`, for the first devices of the stack; the gradient of a weight is a product of two
matrices per device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.training.layout import first
from adelfl.training.submodel import Scaler

_ATEN = torch.ops.aten


def is_stackable(module: nn.Module) -> bool:
    """Return whether an operation here computes a module."""
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and all(s == 1 for s in (*module.stride, *module.dilation))
    if isinstance(module, nn.MaxPool2d):
        pair = [v if isinstance(v, tuple) else (v, v) for v in (module.kernel_size, module.stride, module.padding)]
        return pair == [(2, 2), (2, 2), (0, 0)] and module.dilation == 1 and not module.ceil_mode
    return type(module) in STACK_OPERATIONS


@dataclass(eq=False)
class Dense:
    """A dense layer."""

    module: nn.Linear
    x: Tensor = field(init=False)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute the output with a weight for each device."""
        self.x, turned = x, weight.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias[:, None], x, turned)

    def input_grad(self, delta: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input."""
        return torch.bmm(delta, first(weight, delta.shape[0]))

    def factors(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return two matrices per device whose product is the gradient of the weight."""
        return delta.transpose(1, 2), first(self.x, delta.shape[0])

    def bias_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the bias."""
        return delta.sum(1)


@dataclass(eq=False)
class Convolution:
    """A convolution of stride 1: the inputs of each output are copied into a column of a matrix."""

    module: nn.Conv2d
    shape: torch.Size = field(init=False)
    columns: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.padding = tuple(int(p) for p in self.module.padding)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute the output with a kernel for each device."""
        (kh, kw), (top, left) = self.module.kernel_size, self.padding
        if top or left:
            x = functional.pad(x, (0, 0, left, left, top, top))
        self.shape = x.shape
        windows = x.unfold(2, kh, 1).unfold(3, kw, 1).permute(0, 1, 5, 6, 2, 3, 4)
        self.columns = windows.reshape(x.shape[0], weight[0, 0].numel(), -1)
        kernel = weight.flatten(2)
        out = torch.bmm(kernel, self.columns) if bias is None else torch.baddbmm(bias[..., None], kernel, self.columns)
        return out.view(x.shape[0], -1, *windows.shape[4:])

    def input_grad(self, delta: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input."""
        (kh, kw), (top, left) = self.module.kernel_size, self.padding
        n, h, w = delta.shape[0], *delta.shape[2:4]
        columns = torch.bmm(first(weight, n).flatten(2).transpose(1, 2), delta.flatten(2))
        columns = columns.view(n, -1, kh, kw, *delta.shape[2:])
        channels, height, width, rows = self.shape[1:]
        lines = delta.new_zeros(
            n, channels, kh, h, width, rows
        )  # sums over the columns of a kernel, then over its lines
        for j in range(kw):
            lines[:, :, :, :, j : j + w] += columns[:, :, :, j]
        grad = delta.new_zeros(n, *self.shape[1:])
        for i in range(kh):
            grad[:, :, i : i + h] += lines[:, :, i]
        return grad[:, :, top : height - top, left : width - left]

    def factors(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return two matrices per device whose product is the gradient of the kernel."""
        return delta.flatten(2), first(self.columns, delta.shape[0]).transpose(1, 2)

    def bias_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the bias."""
        return delta.flatten(2).sum(2)


@dataclass(eq=False)
class Relu:
    """max(x, 0), in place: no operation here needs its own output to go back."""

    module: nn.ReLU
    out: Tensor = field(init=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        self.out = torch.relu_(x)
        return self.out

    def input_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the input."""
        return _ATEN.threshold_backward.default(delta, first(self.out, delta.shape[0]), 0)  # type: ignore[no-any-return]


@dataclass(eq=False)
class Pool:
    """Max-pooling over windows of 2×2, as four slices."""

    module: nn.MaxPool2d
    x: Tensor = field(init=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        self.x = x
        a, b, c, d = _quarters(x)
        self.upper, self.lower = torch.maximum(a, b), torch.maximum(c, d)
        return torch.maximum(self.upper, self.lower)

    def input_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the input."""
        x, upper_max, lower_max = (
            kept[: delta.shape[0], ..., : delta.shape[4]] for kept in (self.x, self.upper, self.lower)
        )
        grad = torch.zeros_like(x) if x.shape[2] % 2 or x.shape[3] % 2 else torch.empty_like(x)
        (a, b, c, d), (to_a, to_b, to_c, to_d) = _quarters(x), _quarters(grad)
        upper, lower = torch.empty_like(delta), torch.empty_like(delta)
        _share(delta, upper_max, lower_max, upper, lower)
        _share(upper, a, b, to_a, to_b)
        _share(lower, c, d, to_c, to_d)
        return grad

    def forget(self) -> None:
        """Release what was kept for the backward pass."""
        del self.x, self.upper, self.lower


def _share(delta: Tensor, first: Tensor, second: Tensor, to_first: Tensor, to_second: Tensor) -> None:
    """Give the gradient to the larger of two; to the first if they are equal, like torch's kernel."""
    _ATEN.threshold_backward.grad_input(delta, second - first, 0, grad_input=to_second)
    torch.sub(delta, to_second, out=to_first)


def _quarters(x: Tensor) -> list[Tensor]:
    """Return the four corners of all 2×2 windows, in reading order, as views."""
    h, w = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    return [x[:, :, i:h:2, j:w:2] for i in (0, 1) for j in (0, 1)]


@dataclass(eq=False)
class Flatten:
    """Images to vectors, as a view."""

    module: nn.Flatten
    shape: torch.Size = field(init=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        self.shape = x.shape[1:]
        return x if x.dim() == 3 else x.flatten(1, 3).transpose(1, 2)

    def input_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the input."""
        return delta if len(self.shape) == 2 else delta.transpose(1, 2).reshape(-1, *self.shape)


@dataclass(eq=False)
class ScaleStack:
    """HeteroFL's scaler."""

    module: Scaler

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        return x / self.module.width

    def input_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the input."""
        return delta / self.module.width


STACK_OPERATIONS: dict[type[nn.Module], Any] = {
    nn.Linear: Dense,
    nn.Conv2d: Convolution,
    nn.ReLU: Relu,
    nn.MaxPool2d: Pool,
    nn.Flatten: Flatten,
    Scaler: ScaleStack,
}
