"""The operations that the fused engine knows: each goes forward, and back for a prefix of the rows.

Going back is split in two: the gradient of the input, plain, and those of the parameters, each row with a weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.learning.submodel import Scaler

_ATEN = torch.ops.aten
_MANY_CHANNELS = 16


def is_known(module: nn.Module) -> bool:
    """Whether the operation is used as it is done here."""
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.MaxPool2d):
        return not module.return_indices
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    return True


@dataclass
class _Linear:
    module: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return functional.linear(x, self.module.weight, self.module.bias)

    def input_grad(self, delta: Tensor) -> Tensor:
        return delta @ self.module.weight

    def grads(self, delta: Tensor, row_weight: Tensor) -> list[Tensor]:
        weighted = delta * row_weight[:, None]
        found = [weighted.t() @ self.x[: delta.shape[0]]]
        if self.module.bias is not None:
            found.append(weighted.sum(0))
        return found


@dataclass
class _Conv:
    """Channels last where there are many of them: quicker on CPUs then, and slower for few."""

    module: nn.Conv2d

    def __post_init__(self) -> None:
        many = self.module.out_channels % _MANY_CHANNELS == 0
        self.format = torch.channels_last if many else torch.contiguous_format

    def forward(self, x: Tensor) -> Tensor:
        self.x = x.contiguous(memory_format=self.format)
        m = self.module
        out = functional.conv2d(self.x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)
        return out.contiguous(memory_format=self.format)

    def _backward(self, delta: Tensor, x: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        m = self.module
        geometry = (m.stride, m.padding, m.dilation, False, [0, 0], m.groups)
        found: tuple[Tensor, Tensor, Tensor] = _ATEN.convolution_backward(
            delta, x, m.weight, [m.out_channels], *geometry, mask
        )
        return found

    def input_grad(self, delta: Tensor) -> Tensor:
        delta = delta.contiguous(memory_format=self.format)
        return self._backward(delta, self.x[: delta.shape[0]], [True, False, False])[0]

    def grads(self, delta: Tensor, row_weight: Tensor) -> list[Tensor]:
        weighted = (delta * row_weight.view(-1, 1, 1, 1)).contiguous(memory_format=self.format)
        x = self.x[: delta.shape[0]]
        _, weight, bias = self._backward(weighted, x, [False, True, self.module.bias is not None])
        return [weight] if self.module.bias is None else [weight, bias]


@dataclass
class _GroupNorm:
    module: nn.GroupNorm

    def forward(self, x: Tensor) -> Tensor:
        m = self.module
        n, c = x.shape[:2]
        self.x, self.spatial = x, math.prod(x.shape[2:])
        last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        self.format = torch.channels_last if last else torch.contiguous_format
        out, self.mean, self.rstd = _ATEN.native_group_norm(
            x, m.weight, m.bias, n, c, self.spatial, m.num_groups, m.eps
        )
        result: Tensor = out
        return result

    def _backward(self, delta: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        n, m = delta.shape[0], self.module
        found: tuple[Tensor, Tensor, Tensor] = _ATEN.native_group_norm_backward(
            delta.contiguous(memory_format=self.format),
            self.x[:n],
            self.mean[:n],
            self.rstd[:n],
            m.weight,
            n,
            m.num_channels,
            self.spatial,
            m.num_groups,
            mask,
        )
        return found

    def input_grad(self, delta: Tensor) -> Tensor:
        return self._backward(delta, [True, False, False])[0]

    def grads(self, delta: Tensor, row_weight: Tensor) -> list[Tensor]:
        if not self.module.affine:
            return []
        # All three, though the first is not needed: with channels last torch's kernel crashes without it (2.13).
        weighted = delta * row_weight.view(-1, *([1] * (delta.dim() - 1)))
        _, weight, bias = self._backward(weighted, [True, True, True])
        return [weight, bias]


@dataclass
class _ReLU:
    module: nn.ReLU

    def forward(self, x: Tensor) -> Tensor:
        self.out = torch.relu(x)
        return self.out

    def input_grad(self, delta: Tensor) -> Tensor:
        found: Tensor = _ATEN.threshold_backward(delta, self.out[: delta.shape[0]], 0)
        return found


@dataclass
class _MaxPool:
    module: nn.MaxPool2d

    def __post_init__(self) -> None:
        m = self.module
        kernel, stride, padding, dilation = (
            [v, v] if isinstance(v, int) else list(v) for v in (m.kernel_size, m.stride, m.padding, m.dilation)
        )
        self.geometry = (kernel, stride, padding, dilation, bool(m.ceil_mode))
        self.plain = self.geometry == ([2, 2], [2, 2], [0, 0], [1, 1], False)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        # Torch's own kernel is quick only with channels last; 2×2 windows are four slices.
        self.by_slices = self.plain and not x.is_contiguous(memory_format=torch.channels_last)
        if self.by_slices:
            a, b, c, d = _quarters(x)
            self.out = torch.maximum(torch.maximum(a, b), torch.maximum(c, d))
        else:
            self.out, self.indices = _ATEN.max_pool2d_with_indices(x, *self.geometry)
        return self.out

    def input_grad(self, delta: Tensor) -> Tensor:
        n = delta.shape[0]
        x = self.x[:n]
        if not self.by_slices:
            found: Tensor = _ATEN.max_pool2d_with_indices_backward(delta, x, *self.geometry, self.indices[:n])
            return found
        grad = torch.zeros_like(x) if x.shape[2] % 2 or x.shape[3] % 2 else torch.empty_like(x)
        *first, last = _quarters(grad)
        # Like torch's kernel: of equal values the first one in reading order takes it all.
        for place, value in zip(first, _quarters(x), strict=False):
            torch.mul(delta, value == self.out[:n], out=place)
            delta = delta - place
        last.copy_(delta)
        return grad


def _quarters(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four corners of all 2×2 windows, in reading order, as views."""
    h, w = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    return x[:, :, 0:h:2, 0:w:2], x[:, :, 0:h:2, 1:w:2], x[:, :, 1:h:2, 0:w:2], x[:, :, 1:h:2, 1:w:2]


@dataclass
class _Flatten:
    module: nn.Flatten

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape[1:]
        return x.flatten(1)

    def input_grad(self, delta: Tensor) -> Tensor:
        return delta.reshape(delta.shape[0], *self.shape)


@dataclass
class _Scale:
    module: Scaler

    def forward(self, x: Tensor) -> Tensor:
        return x / self.module.width

    def input_grad(self, delta: Tensor) -> Tensor:
        return delta / self.module.width


STEPS: dict[type[nn.Module], Any] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Conv,
    nn.GroupNorm: _GroupNorm,
    nn.ReLU: _ReLU,
    nn.MaxPool2d: _MaxPool,
    nn.Flatten: _Flatten,
    Scaler: _Scale,
}
