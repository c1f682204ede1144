"""Operations of the fused engine's chain pass: forward, and backward for the first rows.

The backward pass has two parts: the plain gradient of the input, and gradients of the parameters with a weight for each
row. The rows are the last dimension in memory where that is faster on CPUs.
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.training.submodel import Scaler

VECTOR = 8  # numbers in a vector instruction of a CPU

M = TypeVar("M", bound=nn.Module)

_ATEN = torch.ops.aten


class Operation(Generic[M]):
    """The operation of a module: ``forward``, and ``input_grad`` for the first rows or devices.

    ``kept`` has what the backward pass needs. It is set to None as early as possible, so that the next pass can use
    the same memory, which is still in the caches.
    """

    kept: Any = None

    def __init__(self, module: M) -> None:
        self.module = module


def first(x: Tensor, rows: int) -> Tensor:
    """Return the first rows, without slicing if these are all rows, since slicing takes time."""
    return x if x.shape[0] == rows else x[:rows]


def weighed(delta: Tensor, row_weight: Tensor | None) -> Tensor:
    """Multiply each row by its weight, if there are weights."""
    return delta if row_weight is None else delta * row_weight.view(-1, *([1] * (delta.dim() - 1)))


def rows_last(x: Tensor) -> Tensor:
    """Return (N, C, H, W) as (H, W, C, N), with neighbouring rows adjacent in memory."""
    if x.stride(0) != 1:  # as a matrix, since torch is slow to transpose four dimensions
        x = x.flatten(1).t().contiguous().t().view(x.shape)
    return x.permute(2, 3, 1, 0)


class _Linear(Operation[nn.Linear]):
    """Rows are last in memory if the outputs do not fill vectors, where that is faster on CPUs."""

    def __init__(self, m: nn.Linear) -> None:
        super().__init__(m)
        # The same memory as the parameters, without the module's lookup by name at every access.
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
        delta = weighed(delta, row_weight)
        weight = torch.mm(delta.t(), first(self.kept, delta.shape[0]))
        return [weight] if self.bias is None else [weight, delta.sum(0)]


class _Conv(Operation[nn.Conv2d]):
    """Channels are last in memory if they fill vectors, where that is faster on CPUs."""

    def __init__(self, module: nn.Conv2d) -> None:
        super().__init__(module)
        many = module.out_channels % VECTOR == 0
        self.format = torch.channels_last if many else torch.contiguous_format

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x.contiguous(memory_format=self.format)
        m = self.module
        out = functional.conv2d(self.kept, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)
        return out.contiguous(memory_format=self.format)

    def _backward(self, delta: Tensor, x: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        m = self.module
        geometry = (m.stride, m.padding, m.dilation, False, [0, 0], m.groups)
        return _ATEN.convolution_backward(delta, x, m.weight, [m.out_channels], *geometry, mask)  # type: ignore[no-any-return]

    def input_grad(self, delta: Tensor) -> Tensor:
        delta = delta.contiguous(memory_format=self.format)
        return self._backward(delta, first(self.kept, delta.shape[0]), [True, False, False])[0]

    def grads(self, delta: Tensor, row_weight: Tensor | None) -> list[Tensor]:
        weighted = weighed(delta, row_weight).contiguous(memory_format=self.format)
        x = first(self.kept, delta.shape[0])
        _, weight, bias = self._backward(weighted, x, [False, True, self.module.bias is not None])
        return [weight] if self.module.bias is None else [weight, bias]


class _RowsLast(Operation[nn.Conv2d]):
    """A convolution of stride 1 by matrix products, with rows as the last dimension in memory.

    Torch's kernels are vectorised over channels, and slow for few channels; this one is vectorised over rows. The input
    is copied into bands, one for each line y of the output: bands[y, x] is column x of the kh input lines of this line.
    Columns are adjacent, so the input of output (y, x) is one block of memory of kw columns, without a further copy.
    """

    def __init__(self, module: nn.Conv2d) -> None:
        super().__init__(module)
        self.kh, self.kw = (int(k) for k in module.kernel_size)

    def _windows(self, x: Tensor) -> Tensor:
        """Return the inputs of each output, for an input (H, W, C, N): overlapping views (H', W', kw·kh·C, N)."""
        top, left = (int(p) for p in self.module.padding)
        if top or left:
            h, w, *rest = x.shape
            padded = x.new_zeros(h + 2 * top, w + 2 * left, *rest)
            padded[top : top + h, left : left + w] = x
            x = padded
        bands = x.unfold(0, self.kh, 1).permute(0, 1, 4, 2, 3).contiguous()
        column = self.kh * x.shape[2]
        return bands.flatten(1, 3).unfold(1, self.kw * column, column).transpose(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = rows_last(x)
        m, windows = self.module, self._windows(self.kept)
        h, w, _, n = windows.shape
        weight = m.weight.permute(0, 3, 2, 1).flatten(1).expand(w, -1, -1)
        bias = weight.new_zeros(1) if m.bias is None else m.bias[:, None]
        out = windows.new_empty(h, w, m.out_channels, n)
        for y in range(h):  # one line at a time fits into the cache
            torch.baddbmm(bias, weight, windows[y], out=out[y])
        return out.permute(3, 2, 0, 1)

    def input_grad(self, delta: Tensor) -> Tensor:
        m, kh, kw = self.module, self.kh, self.kw
        d = rows_last(delta)
        h, w, c_out, n = d.shape
        d = d.flatten(1, 2)
        height, width, c, _ = self.kept.shape
        top, left = (int(p) for p in m.padding)
        # Column x of the padded input affects columns x - kw + 1 … x of the output, which are one block of memory.
        weight = m.weight.flip(3).permute(2, 1, 3, 0).reshape(kh * c, kw * c_out)
        bands = d.new_empty(h, width, kh * c, n)
        for x in range(width):
            start = x + left - kw + 1
            first, end = max(start, 0), min(start + kw, w)
            part = weight[:, (first - start) * c_out : (end - start) * c_out].expand(h, -1, -1)
            torch.bmm(part, d[:, first * c_out : end * c_out], out=bands[:, x])
        grad = d.new_zeros(height + 2 * top, width, c, n)
        for y, band in enumerate(bands.view(h, width, kh, c, n).unbind(2)):
            grad[y : y + h] += band
        return grad[top : top + height].permute(3, 2, 0, 1)

    def grads(self, delta: Tensor, row_weight: Tensor | None) -> list[Tensor]:
        m, n = self.module, delta.shape[0]
        d, x = rows_last(delta), self.kept[..., :n]
        bias = d.sum((0, 1)).sum(1) if row_weight is None else d.sum((0, 1)) @ row_weight
        if row_weight is not None and x.numel() < d.numel():  # the weights multiply the smaller factor
            x = x * row_weight
        elif row_weight is not None:
            d = d * row_weight
        windows = self._windows(x)
        weight = d.new_zeros(m.out_channels, windows.shape[2])
        for y in range(windows.shape[0]):
            weight += torch.bmm(d[y], windows[y].transpose(1, 2)).sum(0)
        weight = weight.view(m.out_channels, self.kw, self.kh, m.in_channels).permute(0, 3, 2, 1)
        return [weight] if m.bias is None else [weight, bias]


def convolution(module: nn.Conv2d) -> _Conv | _RowsLast:
    """Return the faster implementation by a fixed rule, so that runs can be repeated to the bit."""
    simple = module.groups == 1 and all(s == 1 for s in (*module.stride, *module.dilation))
    few = module.in_channels == 1 or module.out_channels % VECTOR != 0
    return _RowsLast(module) if simple and few and module.weight.device.type == "cpu" else _Conv(module)


class MaxPool(Operation[nn.MaxPool2d]):
    """Max-pooling by torch's kernel, which is fast only with channels last; rows that come last act as channels."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        super().__init__(module)
        sizes: tuple[Any, ...] = (module.kernel_size, module.stride, module.padding, module.dilation)
        self.geometry = (*([v] if isinstance(v, int) else list(v) for v in sizes), module.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        self.unchanged = x.device.type != "cpu" or x.is_contiguous(memory_format=torch.channels_last)
        self.channels = x.shape[1]
        out, indices = _ATEN.max_pool2d_with_indices(self._images(x), *self.geometry)
        self.kept = x, self._rows(indices)
        return self._rows(out)

    def input_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the input for the first rows."""
        x, indices = (self._images(first(kept, delta.shape[0])) for kept in self.kept)
        grad = _ATEN.max_pool2d_with_indices_backward(self._images(delta), x, *self.geometry, indices)
        return self._rows(grad)

    def _images(self, x: Tensor) -> Tensor:
        """Return images for torch's kernel: all rows and channels as the channels of one image."""
        return x if self.unchanged else rows_last(x).flatten(2)[None].permute(0, 3, 1, 2)

    def _rows(self, images: Tensor) -> Tensor:
        """Return the result of torch's kernel as images (N, C, H, W)."""
        if self.unchanged:
            return images
        return images[0].permute(1, 2, 0).view(*images.shape[2:], self.channels, -1).permute(3, 2, 0, 1)


class _GroupNorm(Operation[nn.GroupNorm]):
    def forward(self, x: Tensor) -> Tensor:
        m = self.module
        n, c = x.shape[:2]
        self.spatial = math.prod(x.shape[2:])
        # A single row in the last dimension has the strides of channels last, but torch's kernel does not accept it.
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
        # The first gradient is not needed, but with channels last torch 2.13's kernel crashes without it.
        _, weight, bias = self._backward(weighed(delta, row_weight), [True, True, True])
        return [weight, bias]


class Relu(Operation[nn.ReLU]):
    """max(x, 0), in place, since no operation needs its own output in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        self.kept = torch.relu_(x)
        return x

    def input_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the input."""
        grad: Tensor = _ATEN.threshold_backward.default(delta, first(self.kept, delta.shape[0]), 0)
        return grad


class Scale(Operation[Scaler]):
    """HeteroFL's scaler."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        return x / self.module.width

    def input_grad(self, delta: Tensor) -> Tensor:
        """Return the gradient of the input."""
        return delta / self.module.width


class _Flatten(Operation[nn.Flatten]):
    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape[1:]
        return x.flatten(1)

    def input_grad(self, delta: Tensor) -> Tensor:
        return delta.reshape(delta.shape[0], *self.shape)


class SoftmaxLoss:
    """Weighted cross-entropy of rows, with rows last in memory, which takes a third of the time."""

    def __init__(self) -> None:
        self.minus_one = torch.empty(1, 0)

    def __call__(self, scores: Tensor, labels: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Return minus the loss, shape (1,), and the gradient of scores (n, classes), for labels of shape (1, n)."""
        log_p = torch.log_softmax(scores.t(), 0)
        minus_loss = torch.mv(log_p.gather(0, labels), share)
        if self.minus_one.shape[1] < labels.shape[1]:
            self.minus_one = -torch.ones_like(share)[None]
        return minus_loss, log_p.exp_().scatter_add_(0, labels, self.minus_one).mul_(share).t()


def is_known(module: nn.Module) -> bool:
    """Return whether its operation here implements the options of a module."""
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.MaxPool2d):
        return not module.return_indices
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    return True


STEPS: dict[type[nn.Module], Any] = {
    nn.Linear: _Linear,
    nn.Conv2d: convolution,
    nn.GroupNorm: _GroupNorm,
    nn.ReLU: Relu,
    nn.MaxPool2d: MaxPool,
    nn.Flatten: _Flatten,
    Scaler: Scale,
}
