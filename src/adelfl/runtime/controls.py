"""Control variates: how the gradients of a device differ from those of all, as far as its last local steps show it.

Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning", ICML 2020, option II:

    g ← g − c_u + c,     c_u⁺ = c_u − c + (w − w_u)/(k η)  after k steps,     c ← c + Σ_u p_u (c_u⁺ − c_u)

A server that knows w, k and η computes c_u⁺ from the update itself, so uploads are no larger. Layers that a device did
not reach keep their variates. Works on arrays of NumPy and on tensors of torch alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Array = Any
"""An array of NumPy or a tensor of torch."""

_SERVER = "server"


@dataclass(eq=False)
class Controls:
    """The control variates of a run.

    Attributes
    ----------
    server : dict of str to array
        c, by parameter; a name that is missing is zero.
    devices : dict of int to dict
        c_u of the devices that have trained.
    """

    server: dict[str, Array] = field(default_factory=dict)
    devices: dict[int, dict[str, Array]] = field(default_factory=dict)
    _moved: dict[str, Array] = field(default_factory=dict)

    def correction(self, device: int) -> dict[str, Array]:
        """Return c − c_u, which a device adds to its gradients; names that are missing are zero."""
        own = self.devices.get(device, {})
        return {name: self.server.get(name, 0.0) - own.get(name, 0.0) for name in {**self.server, **own}}

    def move(self, device: int, update: Mapping[str, Array], steps: Mapping[str, int], rate: float, p: float) -> None:
        """Learn from the update of a device.

        Parameters
        ----------
        device : int
        update : mapping of str to array
            w_u − w.
        steps : mapping of str to int
            k, the steps behind it, by parameter.
        rate, p : float
            η, and how much the device counts in c.
        """
        own = self.devices.setdefault(device, {})
        for name, change in update.items():
            if not steps[name]:
                continue
            old = own.get(name, 0.0)
            own[name] = old - self.server.get(name, 0.0) - change / (steps[name] * rate)
            self._moved[name] = self._moved.get(name, 0.0) + p * (own[name] - old)

    def close(self) -> None:
        """Move c when all devices of a merge have trained."""
        for name, change in self._moved.items():
            self.server[name] = self.server.get(name, 0.0) + change
        self._moved = {}

    def state(self) -> dict[str, Array]:
        """Return all variates by a name, for a checkpoint; :meth:`load` takes them back one by one."""
        owners = {_SERVER: self.server, **{str(u): own for u, own in self.devices.items()}}
        return {f"{owner}/{name}": value for owner, own in owners.items() for name, value in own.items()}

    def load(self, name: str, value: Array) -> None:
        """Take back one entry of :meth:`state`."""
        owner, _, parameter = name.partition("/")
        own = self.server if owner == _SERVER else self.devices.setdefault(int(owner), {})
        own[parameter] = value
