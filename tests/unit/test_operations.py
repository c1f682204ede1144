"""The fused engine's operations: forward, and back for a prefix of the rows, against autograd."""

import numpy as np
import pytest
import torch
from torch import nn

from adelfl.training import work
from adelfl.training.operations import STEPS
from adelfl.training.work import Samples

N = 7
CONVOLUTIONS = {
    "one channel": ((1, 10, 5), {}, (13, 11)),
    "few channels": ((10, 20, 5), {}, (12, 12)),
    "padded": ((3, 10, 3), {"padding": 1}, (9, 8)),
    "padded more than it reaches": ((2, 5, 1), {"padding": 2}, (4, 3)),
    "not square": ((3, 6, (2, 5)), {"padding": (0, 3)}, (7, 9)),
    "as large as the picture": ((2, 3, (4, 6)), {}, (4, 6)),
    "without bias": ((3, 6, 3), {"bias": False}, (8, 7)),
    "one to many": ((1, 32, 3), {"padding": 1}, (8, 8)),
    "many": ((3, 32, 3), {"padding": 1}, (8, 8)),
    "strided": ((3, 10, 3), {"stride": 2}, (9, 8)),
    "dilated": ((3, 10, 3), {"dilation": (1, 2)}, (9, 9)),
    "in groups": ((4, 6, 3), {"groups": 2}, (8, 8)),
}
POOLS = {
    "even": ((2,), {}, (8, 6)),
    "odd": ((2,), {}, (7, 9)),
    "overlapping": ((3, 2), {"padding": 1}, (8, 8)),
    "ceiling": ((2,), {"ceil_mode": True}, (7, 7)),
}


def laid_out(x, layout):
    """The same numbers, in another order in memory."""
    if x.dim() == 2:
        return x.t().contiguous().t() if layout == "rows last" else x.contiguous()
    if layout == "rows last":
        return x.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)
    return x.contiguous(memory_format=torch.channels_last if layout == "channels last" else torch.contiguous_format)


def same(module, x, layout, rows):
    """Compare an operation with autograd: the output of all rows, and the gradients of the first few."""
    torch.manual_seed(1)
    x = x.requires_grad_()
    plain = module(x)
    delta, weight = torch.randn_like(plain[:rows]), torch.rand(rows).to(x)
    (expected,) = torch.autograd.grad((plain[:rows] * delta).sum(), x, retain_graph=True)
    own = list(module.parameters())
    weighted = (plain[:rows] * delta * weight.view(-1, *([1] * (plain.dim() - 1)))).sum()
    plainly = (plain[:rows] * delta).sum()
    with torch.no_grad():
        step = STEPS[type(module)](module)
        torch.testing.assert_close(step.forward(laid_out(x.detach(), layout)), plain.detach())
        whole = laid_out(torch.cat([delta, torch.zeros_like(plain[rows:])]), layout)
        for given in (whole[:rows], delta):  # as a part of what more rows gave, and by itself
            torch.testing.assert_close(step.input_grad(given), expected[:rows])
            if own:
                for row_weight, total in ((weight, weighted), (None, plainly)):
                    found = step.grads(given, row_weight)
                    torch.testing.assert_close(found, list(torch.autograd.grad(total, own, retain_graph=True)))
        step.kept = None
        kept = [v for v in vars(step).values() if isinstance(v, torch.Tensor) and v.shape[:1] == (N,)]
        assert not kept, "what is kept for the way back stays in memory"


@pytest.mark.parametrize("rows", [N, 3, 1])
@pytest.mark.parametrize("layout", ["rows first", "rows last", "channels last"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_equals_autograd(case, layout, rows):
    given, options, size = CONVOLUTIONS[case]
    torch.manual_seed(0)
    module = nn.Conv2d(*given, **options).double()
    same(module, torch.randn(N, given[0], *size, dtype=torch.double), layout, rows)


@pytest.mark.parametrize("rows", [N, 3, 1])
@pytest.mark.parametrize("layout", ["rows first", "rows last"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [16, 10, 1])  # in whole vectors, or not
def test_a_dense_layer_equals_autograd(outputs, bias, layout, rows):
    torch.manual_seed(0)
    module = nn.Linear(5, outputs, bias=bias).double()
    same(module, torch.randn(N, 5, dtype=torch.double), layout, rows)


@pytest.mark.parametrize("rows", [N, 3])
@pytest.mark.parametrize("layout", ["rows first", "rows last", "channels last"])
@pytest.mark.parametrize("case", POOLS)
def test_a_pool_equals_autograd_and_gives_ties_to_the_first(case, layout, rows):
    given, options, size = POOLS[case]
    torch.manual_seed(0)
    x = torch.randint(0, 3, (N, 5, *size)).double()  # hardly a window without a tie
    same(nn.MaxPool2d(*given, **options), x, layout, rows)


@pytest.mark.parametrize("rows", [1, N])
def test_a_norm_after_a_convolution_with_rows_last_equals_autograd(rows):
    torch.manual_seed(0)
    chain = nn.Sequential(nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).double()
    x = torch.randn(rows, 1, 9, 8, dtype=torch.double)
    plain = chain(x)
    delta = torch.randn_like(plain)
    expected = torch.autograd.grad((plain * delta).sum(), list(chain.parameters()))
    found = []
    with torch.no_grad():
        steps = [STEPS[type(module)](module) for module in chain]
        for step in steps:
            x = step.forward(x)
        torch.testing.assert_close(x, plain)
        for step in reversed(steps):
            if hasattr(step, "grads"):
                found[:0] = step.grads(delta, torch.ones(rows).double())
            delta = step.input_grad(delta)
    torch.testing.assert_close(found, list(expected))


@pytest.mark.parametrize(("low", "step"), [(0.0, 1 / 255), (-1.0, 1 / 127.5), (-0.4242, 1 / (255 * 0.3081))])
def test_rows_from_the_8_bit_copy_are_the_samples_up_to_rounding(low, step, monkeypatch):
    monkeypatch.setattr(work, "_CACHED_BYTES", 0)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 2, 7))
    x = (low + step * pixels).astype(np.float32)
    samples, index = Samples.of(x, np.zeros(40, dtype=np.int64)), torch.arange(40).flip(0)
    rows, wanted = samples.compact().inputs(index), samples.inputs(index)
    assert rows.shape == wanted.shape
    assert float((rows - wanted).abs().max()) <= 2.0**-22 * np.abs(x).max()
    assert samples.compact()._bytes is not None


def test_samples_that_were_no_bytes_have_no_8_bit_copy_and_a_changed_array_is_read_again(monkeypatch):
    monkeypatch.setattr(work, "_CACHED_BYTES", 0)
    x = np.random.default_rng(0).integers(0, 256, (40, 6)).astype(np.float32)
    labels, index = np.zeros(40, dtype=np.int64), torch.arange(40)
    assert torch.equal(Samples.of(x, labels).compact().inputs(index), torch.from_numpy(x))
    x[3, 2] = 7.5
    compact = Samples.of(x, labels).compact()
    assert compact._bytes is None
    assert torch.equal(compact.inputs(index), torch.from_numpy(x))
