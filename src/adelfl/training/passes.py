"""What the fused engine asks of a pass: gradients for the rows of many devices, each layer's with its weights."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

CHUNK_BYTES = 256 << 20  # of activations that a pass keeps at a time


class CannotFuse(Exception):
    """A pass is not for this model; the message is the reason."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples that go through the network together, those of the deepest devices first.

    Attributes
    ----------
    start, end : int
        Which rows of the round.
    share : Tensor, shape (n,)
        1/S_u of each row, times the number of its draws.
    reach : list of int, length L
        How many rows (a prefix) deliver layer l.
    weight : list of Tensor or None, length L
        A[u,l] of those rows; None if it is the same for all of them, and the update takes care of it.
    """

    start: int
    end: int
    share: Tensor
    reach: list[int]
    weight: list[Tensor | None]


class Pass(Protocol):
    """One way through a network and back for the rows of many devices."""

    order: list[str]
    """The parameters in the order in which the way back comes to them."""

    def mode(self) -> AbstractContextManager[object]:
        """What of autograd must be on or off, from the gathering of the rows on."""
        ...

    def ends(self, reach: list[int], rows: int) -> list[int]:
        """Where rows are cut into parts that go through one after another: the end of each.

        Parameters
        ----------
        reach : list of int, length L
            How many rows deliver layer l.
        rows : int
            How many there are.
        """
        ...

    def gradients(self, x: Tensor, labels: Tensor, rows: Rows, total: list[Tensor]) -> Tensor:
        """Walk forward and back over some rows, and add their part to each parameter's gradient.

        Parameters
        ----------
        x, labels : Tensor, shapes (n, ...) and (1, n)
            The samples.
        rows : Rows
            How far their devices come, and what they weigh.
        total : list of Tensor
            Gradients so far, in the order of :attr:`order`, as far as anybody came.

        Returns
        -------
        Tensor, shape (1,)
            Minus the sum over devices of their mean loss, as far as these rows are part of it.
        """
        ...
