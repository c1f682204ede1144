"""The interface of passes: gradients for the rows of many devices, weighted row by row in each layer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

CHUNK_BYTES = 256 << 20  # activations that a pass keeps at a time


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples that go through the network together: some of the rows of a round, those of the deepest devices first."""

    start: int
    end: int
    share: Tensor
    """1/S_u of each row, times the number of its draws, shape (n,)."""
    reach: list[int]
    """How many rows (a prefix) deliver layer l."""
    weight: list[Tensor | None]
    """A[u,l] of those rows; None if it is the same for all of them, and multiplies the step instead."""


class Pass(Protocol):
    """One way to go through a network and back with the rows of many devices."""

    order: list[str]
    """Names of parameters, in the order of backpropagation."""

    def mode(self) -> AbstractContextManager[object]:
        """Return the mode in which rows are gathered and gradients computed; without it, that is inference mode."""
        ...

    def ends(self, changes: list[int], rows: int) -> list[int]:
        """Return the ends of the parts into which rows are cut, to go through one after another.

        ``changes`` has the rows at which weights change, in ascending order, ``rows`` the number of all rows.
        """
        ...

    def gradients(self, x: Tensor, labels: Tensor, rows: Rows, total: list[Tensor]) -> Tensor:
        """Go forward and back with some rows, and return minus the sum of their weighted losses, shape (1,).

        Their gradients are added to ``total``, which has those of the rows before, in the order of :attr:`order`, up to
        the deepest parameter that a row reached. ``x`` and ``labels`` have shapes (n, ...) and (1, n).
        """
        ...
