"""Convolutions and max-pooling of the chain pass: see :mod:`adelfl.training.operations`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.training.layout import VECTOR, Operation, first, rows_last, weighed

_ATEN = torch.ops.aten


class _Conv(Operation[nn.Conv2d]):
    """Channels last where they fill vectors: faster on CPUs then, and slower otherwise."""

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

    Torch's kernels vectorise over channels, of which there may be few; this one vectorises over rows. The input is
    copied into bands, one for each line y of the output: bands[y, x] holds column x of the kh lines that this line
    sees. Columns follow each other, so output (y, x) sees one block of memory, of kw columns, without a further copy.
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
        for y in range(h):  # one line at a time stays in the cache
            torch.baddbmm(bias, weight, windows[y], out=out[y])
        return out.permute(3, 2, 0, 1)

    def input_grad(self, delta: Tensor) -> Tensor:
        m, kh, kw = self.module, self.kh, self.kw
        d = rows_last(delta)
        h, w, c_out, n = d.shape
        d = d.flatten(1, 2)
        height, width, c, _ = self.kept.shape
        top, left = (int(p) for p in m.padding)
        # Column x of the padded input is seen by columns x - kw + 1 … x of the output: one block of memory too.
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
        if row_weight is not None and x.numel() < d.numel():  # weigh what is smaller
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
    """Return the faster implementation for a shape: a fixed rule, so that a run can be repeated to the last bit."""
    simple = module.groups == 1 and all(s == 1 for s in (*module.stride, *module.dilation))
    few = module.in_channels == 1 or module.out_channels % VECTOR != 0
    return _RowsLast(module) if simple and few and module.weight.device.type == "cpu" else _Conv(module)


class MaxPool(Operation[nn.MaxPool2d]):
    """Max-pooling by torch's kernel, which is fast only with channels last; rows that come last pass as channels."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        super().__init__(module)
        sizes: tuple[Any, ...] = (module.kernel_size, module.stride, module.padding, module.dilation)
        self.geometry = (*([v] if isinstance(v, int) else list(v) for v in sizes), module.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        self.as_it_is = x.device.type != "cpu" or x.is_contiguous(memory_format=torch.channels_last)
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
        return x if self.as_it_is else rows_last(x).flatten(2)[None].permute(0, 3, 1, 2)

    def _rows(self, images: Tensor) -> Tensor:
        """Return what torch's kernel gave as images (N, C, H, W)."""
        if self.as_it_is:
            return images
        return images[0].permute(1, 2, 0).view(*images.shape[2:], self.channels, -1).permute(3, 2, 0, 1)
