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

SERVER = "server"
"""The server's key among the variates."""


@dataclass(eq=False)
class Controls:
    """The control variates of a run: c of the server, and c_u of the devices that have trained.

    A checkpoint keeps ``variates``, which are by owner and parameter. What is missing is zero.
    """

    variates: dict[int | str, dict[str, Array]] = field(default_factory=dict)
    _moved: dict[str, Array] = field(default_factory=dict)

    def correction(self, device: int) -> dict[str, Array]:
        """Return c − c_u, which a device adds to its gradients; names that are missing are zero."""
        server, own = (self.variates.get(owner, {}) for owner in (SERVER, device))
        return {name: server.get(name, 0.0) - own.get(name, 0.0) for name in {**server, **own}}

    def move(self, device: int, update: Mapping[str, Array], steps: Mapping[str, int], rate: float, p: float) -> None:
        """Learn from the update w_u − w of a device, which counts by p in c.

        ``steps`` has k of each parameter, and ``rate`` is η.
        """
        server, own = self.variates.get(SERVER, {}), self.variates.setdefault(device, {})
        for name, change in update.items():
            if not steps[name]:
                continue
            old = own.get(name, 0.0)
            own[name] = old - server.get(name, 0.0) - change / (steps[name] * rate)
            self._moved[name] = self._moved.get(name, 0.0) + p * (own[name] - old)

    def close(self) -> None:
        """Move c when all devices of a merge have trained."""
        server = self.variates.setdefault(SERVER, {})
        for name, change in self._moved.items():
            server[name] = server.get(name, 0.0) + change
        self._moved = {}
