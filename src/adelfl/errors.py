"""Errors, each a sentence on what is wrong, what is allowed, and what to do."""

from __future__ import annotations

from functools import partial


class AdelError(Exception):
    """Base class of adelfl's errors; the command line prints the message and exits with 2."""


class ConfigError(AdelError):
    """A value that a user gave is missing, malformed or out of range; the message names its key."""


class InfeasibleBudgetError(AdelError):
    """No plan exists within the budget.

    ``binding`` is the reason in words, and ``smallest_budget`` a budget (seconds) with which the same problem has a
    plan, or None if it is unknown.
    """

    def __init__(self, message: str, *, binding: str, smallest_budget: float | None = None) -> None:
        super().__init__(message)
        self.binding = binding
        self.smallest_budget = smallest_budget

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling with keyword arguments."""
        return partial(type(self), binding=self.binding, smallest_budget=self.smallest_budget), self.args


class MissingExtraError(AdelError):
    """An optional dependency is not installed; the message names the extra."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'adelfl[{extra}]'")
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling."""
        return type(self), (self.package, self.extra)
