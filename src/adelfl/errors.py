"""What can go wrong, said in one sentence: what was wrong, what is allowed, what to do."""

from __future__ import annotations

from functools import partial


class AdelError(Exception):
    """Base of every error that adelfl raises on purpose; the command line prints it and exits with 2."""


class ConfigError(AdelError):
    """A value that a user gave is missing, malformed or out of range; the message names its key."""


class InfeasibleBudgetError(AdelError):
    """No plan meets the constraints of Problem 2 within the budget.

    Attributes
    ----------
    binding : str
        What makes it impossible, in words.
    smallest_budget : float or None
        A budget (seconds) with which the same problem has a plan; None if no budget would help.
    """

    def __init__(self, message: str, *, binding: str, smallest_budget: float | None) -> None:
        super().__init__(message)
        self.binding = binding
        self.smallest_budget = smallest_budget

    def __reduce__(self) -> tuple[object, ...]:
        """Let it travel between processes, keyword arguments and all."""
        return partial(type(self), binding=self.binding, smallest_budget=self.smallest_budget), self.args


class MissingExtraError(AdelError):
    """An optional dependency is not installed; the message says which extra brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'adelfl[{extra}]'")
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[object, ...]:
        """Let it travel between processes."""
        return type(self), (self.package, self.extra)
