"""Errors, each a sentence on what is wrong, what is allowed, and what to do."""

from __future__ import annotations


class AdelError(Exception):
    """Base class of adelfl's errors; the command line prints the message and exits with 2."""


class ConfigError(AdelError):
    """A given value is missing, malformed or out of range; the message names its key."""


class InfeasibleBudgetError(AdelError):
    """No plan exists within the budget.

    ``binding`` is the reason in words, by default the message. ``smallest_budget`` is a budget in seconds with which
    the same problem has a plan, or None if it is unknown.
    """

    def __init__(self, message: str, *, binding: str = "", smallest_budget: float | None = None) -> None:
        super().__init__(message)
        self.binding = binding or message
        self.smallest_budget = smallest_budget


class MissingExtraError(AdelError):
    """An optional dependency is not installed; the message names the extra, and another way out if there is one."""

    def __init__(self, package: str, extra: str, otherwise: str = "") -> None:
        super().__init__(package, extra, otherwise)
        self.package, self.extra, self.otherwise = package, extra, otherwise

    def __str__(self) -> str:
        install = f"{self.package} is not installed; install it with: pip install 'adelfl[{self.extra}]'"
        return f"{install}; or {self.otherwise}" if self.otherwise else install
