"""Control variates: estimates of the difference between the gradients of a device and those of the server.

Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning", ICML 2020, option II:

    g ← g − c_u + c,     c_u⁺ = c_u − c + (w − w_u)/(k η)  after k steps,     c ← c + Σ_u p_u (c_u⁺ − c_u)

The server knows w, k and η, and computes c_u⁺ from the update, so uploads do not become larger. Layers that a device
did not reach keep their variates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adelfl.array_types import Array

SERVER = "server"
"""The server's key among the variates."""


@dataclass(eq=False)
class Controls:
    """Control variates of a run: c of the server, and c_u of the devices that have trained.

    ``variates`` holds them by owner and parameter; missing ones are zero. It is part of a checkpoint.
    """

    variates: dict[int | str, dict[str, Array]] = field(default_factory=dict)
    _moved: dict[str, Array] = field(default_factory=dict)

    def correction(self, device: int) -> dict[str, Array]:
        """Return c − c_u, which a device adds to its gradients; missing parameters are zero."""
        server, own = (self.variates.get(owner, {}) for owner in (SERVER, device))
        return {name: server.get(name, 0.0) - own.get(name, 0.0) for name in {**server, **own}}

    def move(self, device: int, update: Mapping[str, Array], steps: Mapping[str, int], rate: float, p: float) -> None:
        """Move c_u by the update w_u − w of a device, which counts with the weight p in c.

        ``steps`` contains k of each parameter, and ``rate`` is η.
        """
        server, own = self.variates.get(SERVER, {}), self.variates.setdefault(device, {})
        for name, change in update.items():
            if not steps[name]:
                continue
            old = own.get(name, 0.0)
            own[name] = old - server.get(name, 0.0) - change / (steps[name] * rate)
            self._moved[name] = self._moved.get(name, 0.0) + p * (own[name] - old)

    def close(self) -> None:
        """Move c, after all devices of a merge have trained."""
        server = self.variates.setdefault(SERVER, {})
        for name, change in self._moved.items():
            server[name] = server.get(name, 0.0) + change
        self._moved = {}
