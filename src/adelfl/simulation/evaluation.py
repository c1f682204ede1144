"""Loss and accuracy of a model on the test set."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

_NUMBERS_AT_ONCE = 1 << 21  # input numbers of a part of the test set
_IMAGES_AT_ONCE = 256  # more do not fit into the caches


class Evaluation:
    """Evaluates a model on a test set, without changing its state and training modes."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self.model, self.x, self.y = model, x, y
        self._correct: Tensor | None = None  # per sample, of the last evaluation

    @cached_property
    def _works_in_place(self) -> bool:
        """Whether the model changes its input in place, and so needs a copy."""
        probe = self.x[:1].clone()
        before = probe._version
        self.model(probe)
        return probe._version != before

    @cached_property
    def _format(self) -> torch.memory_format:
        """Memory format of inputs: channels last, for faster convolutions, if the model supports it."""
        try:
            self.model(self.x[:2].to(memory_format=torch.channels_last, copy=True))
        except RuntimeError:  # the inputs are not images, or the model uses ``view`` on them
            return torch.contiguous_format
        return torch.channels_last

    @torch.no_grad()
    def __call__(self) -> tuple[float, float]:
        """Return the mean loss and the accuracy."""
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        loss, correct = 0.0, []
        most = 2048 if self._format is torch.contiguous_format else _IMAGES_AT_ONCE
        rows = max(16, min(most, _NUMBERS_AT_ONCE // max(1, self.x[0].numel())))
        for x, y in zip(torch.split(self.x, rows), torch.split(self.y, rows), strict=True):
            logits: Tensor = self.model(x.to(memory_format=self._format, copy=self._works_in_place))
            loss += float(functional.cross_entropy(logits, y, reduction="sum"))
            correct.append(logits.argmax(1) == y)
        for module in training:
            module.training = True
        self._correct = torch.cat(correct)
        return loss / self.y.shape[0], int(self._correct.sum()) / self.y.shape[0]

    def accuracy_on(self, class_counts: NDArray[np.int64]) -> float:
        """Return the last evaluation's accuracy, weighted by class; NaN if the test set has none of the classes."""
        if self._correct is None:
            self()
        assert self._correct is not None
        y, correct = self.y.cpu().numpy(), self._correct.cpu().numpy()
        tested = np.bincount(y, minlength=class_counts.size)
        weight = np.where(tested > 0, class_counts, 0)
        right = np.bincount(y[correct], minlength=class_counts.size) / np.maximum(tested, 1)
        return float(weight @ right / weight.sum()) if weight.any() else math.nan
