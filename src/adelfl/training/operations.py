"""Operations of the fused engine's chain pass: forward, and backward for a prefix of the rows.

The backward pass is split in two: the plain gradient of the input, and gradients of the parameters, with a weight for
each row.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.training.conv_ops import MaxPool, convolution
from adelfl.training.layout import VECTOR, Operation, Relu, Scale, first, weighed
from adelfl.training.submodel import Scaler

_ATEN = torch.ops.aten


def is_known(module: nn.Module) -> bool:
    """Return whether a module has the options that its operation here implements."""
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.MaxPool2d):
        return not module.return_indices
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    return True


class _Linear(Operation[nn.Linear]):
    """Rows last in memory where the outputs do not fill vectors: faster on CPUs then, and slower otherwise."""

    def __init__(self, m: nn.Linear) -> None:
        super().__init__(m)
        # The same memory; a module looks its parameters up by name at every access.
        self.weight = m.weight.detach()
        self.bias: Tensor | None = m.bias.detach() if isinstance(m.bias, Tensor) else None
        self.column: Tensor | None = self.bias[:, None] if self.bias is not None else None
        self.rows_last = m.out_features % VECTOR != 0 and m.weight.device.type == "cpu"

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x
        if not self.rows_last:
            return functional.linear(x, self.weight, self.bias)
        turned = x.t()
        if self.column is None:
            return torch.mm(self.weight, turned).t()
        return torch.addmm(self.column, self.weight, turned).t()

    def input_grad(self, delta: Tensor) -> Tensor:
        return torch.mm(delta, self.weight)

    def grads(self, delta: Tensor, row_weight: Tensor | None) -> list[Tensor]:
        if row_weight is not None:
            delta = weighed(delta, row_weight)
        weight = torch.mm(delta.t(), first(self.kept, delta.shape[0]))
        return [weight] if self.bias is None else [weight, delta.sum(0)]


class _GroupNorm(Operation[nn.GroupNorm]):
    def forward(self, x: Tensor) -> Tensor:
        m = self.module
        n, c = x.shape[:2]
        self.spatial = math.prod(x.shape[2:])
        # A single row that comes last looks like channels last too, but not to torch's kernel.
        last = x.dim() == 4 and x.stride(0) != 1 and x.is_contiguous(memory_format=torch.channels_last)
        self.format = torch.channels_last if last else torch.contiguous_format
        x = x.contiguous(memory_format=self.format)
        out, mean, rstd = _ATEN.native_group_norm(x, m.weight, m.bias, n, c, self.spatial, m.num_groups, m.eps)
        self.kept = x, mean, rstd
        return out  # type: ignore[no-any-return]

    def _backward(self, delta: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        n, m = delta.shape[0], self.module
        statistics = (kept[:n] for kept in self.kept)
        sizes = (n, m.num_channels, self.spatial, m.num_groups)
        return _ATEN.native_group_norm_backward(  # type: ignore[no-any-return]
            delta.contiguous(memory_format=self.format), *statistics, m.weight, *sizes, mask
        )

    def input_grad(self, delta: Tensor) -> Tensor:
        return self._backward(delta, [True, False, False])[0]

    def grads(self, delta: Tensor, row_weight: Tensor | None) -> list[Tensor]:
        if not self.module.affine:
            return []
        # All three, though the first is not needed: with channels last torch 2.13's kernel crashes without it.
        _, weight, bias = self._backward(weighed(delta, row_weight), [True, True, True])
        return [weight, bias]


class _Flatten(Operation[nn.Flatten]):
    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape[1:]
        return x.flatten(1)

    def input_grad(self, delta: Tensor) -> Tensor:
        return delta.reshape(delta.shape[0], *self.shape)


STEPS: dict[type[nn.Module], Any] = {
    nn.Linear: _Linear,
    nn.Conv2d: convolution,
    nn.GroupNorm: _GroupNorm,
    nn.ReLU: Relu,
    nn.MaxPool2d: MaxPool,
    nn.Flatten: _Flatten,
    Scaler: Scale,
}
