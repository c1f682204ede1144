"""The interface of passes, which compute gradients for the rows of many devices, weighted by row and layer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

CHUNK_BYTES = 256 << 20  # largest activations of the rows of one part


@dataclass(frozen=True, eq=False)
class Rows:
    """A part of the rows of a round that is computed at once; rows of the deepest devices come first."""

    start: int
    end: int
    share: Tensor
    """1/S_u of each row, times the number of its draws, shape (n,)."""
    reach: list[int]
    """Number of rows that deliver layer l, which are the first ones."""
    weight: list[Tensor | None]
    """A[u,l] of these rows; None if it is the same for all of them, and multiplies the step instead."""


class Pass(Protocol):
    """A forward and a backward pass with the rows of many devices."""

    order: list[str]
    """Names of parameters, in the order of backpropagation."""

    def mode(self) -> AbstractContextManager[object]:
        """Return a context, within inference mode, in which gradients are computed."""
        ...

    def ends(self, changes: list[int], rows: int) -> list[int]:
        """Return the ends of the parts into which ``rows`` rows are cut; ``changes`` are rows where weights change."""
        ...

    def gradients(self, x: Tensor, labels: Tensor, rows: Rows, total: list[Tensor]) -> Tensor:
        """Do both passes for some rows, and return minus the sum of their weighted losses, shape (1,).

        Their gradients are added to ``total``, the gradients of the rows before, in the order of :attr:`order` up to
        the deepest parameter that a row reached. ``x`` and ``labels`` have shapes (n, ...) and (1, n).
        """
        ...
