"""JAX: jit(vmap(grad)) over the stacked batches of all devices, one compiled round."""

from __future__ import annotations

import os

import measure
import numpy as np
from workloads import Conv, Dense, Flatten, Pool, Relu, first_weights, samples

LAYOUT = os.environ.get("LAYOUT", "NHWC")
MAP = os.environ.get("MAP", "vmap")


class Jax:
    """FedAvg as one compiled function: draw, gather, all gradients, average, step."""

    def __init__(self, asked: measure.Request) -> None:
        import jax
        import jax.numpy as jnp
        from jax import Array, lax

        w = asked.workload

        def forward(weights: list[Array], x: Array) -> Array:
            remaining = iter(weights)
            for step in w.model:
                match step:
                    case Dense():
                        x = x @ next(remaining).T + next(remaining)
                    case Conv():
                        kernel, bias = next(remaining), next(remaining)
                        pad = [(step.padding, step.padding)] * 2
                        if LAYOUT == "NHWC":
                            x = lax.conv_general_dilated(x, kernel, (1, 1), pad, dimension_numbers=("NHWC", "HWIO", "NHWC"))
                            x = x + bias
                        else:
                            x = lax.conv_general_dilated(x, kernel, (1, 1), pad)
                            x = x + bias[:, None, None]
                    case Relu():
                        x = jax.nn.relu(x)
                    case Pool():
                        win = (1, 2, 2, 1) if LAYOUT == "NHWC" else (1, 1, 2, 2)
                        x = lax.reduce_window(x, -jnp.inf, lax.max, win, win, "VALID")
                    case Flatten():
                        if LAYOUT == "NHWC":
                            x = x.transpose(0, 3, 1, 2)
                        x = x.reshape(len(x), -1)
            return x

        def loss(weights: list[Array], x: Array, y: Array) -> Array:
            scores = jax.nn.log_softmax(forward(weights, x))
            return -jnp.take_along_axis(scores, y[:, None], axis=1).mean()

        def one_round(weights: list[Array], x: Array, y: Array, rows: Array) -> list[Array]:
            device = jnp.arange(w.devices)[:, None]
            bx, by = x[device, rows], y[device, rows]
            if MAP == "vmap":
                gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(weights, bx, by)
                mean = [g.mean(0) for g in gradients]
            else:
                def body(acc, xy):
                    return [a + g for a, g in zip(acc, jax.grad(loss)(weights, *xy))], None
                acc, _ = lax.scan(body, [jnp.zeros_like(v) for v in weights], (bx, by))
                mean = [a / w.devices for a in acc]
            return [v - w.rate * g for v, g in zip(weights, mean, strict=True)]

        def drawn(weights: list[Array], x: Array, y: Array, key: Array) -> list[Array]:
            key, mine = jax.random.split(key)
            rows = jax.random.randint(mine, (w.devices, w.batch), 0, w.samples)
            return one_round(weights, x, y, rows), key

        x, y = samples(w)
        first = first_weights(w)
        if LAYOUT == "NHWC" and x.ndim == 5:
            x = np.ascontiguousarray(x.transpose(0, 1, 3, 4, 2))
            first = [v.transpose(2, 3, 1, 0) if v.ndim == 4 else v for v in first]
        self.x, self.y = jnp.asarray(x), jnp.asarray(y, dtype=jnp.int32)
        self.world = [jnp.asarray(v) for v in first]
        self.fixed = None if asked.batches is None else jnp.asarray(asked.batches)
        self.key = jax.random.key(0)
        self.step = jax.jit(one_round)
        self.draw = jax.jit(drawn, donate_argnums=(0,))

    def run(self, rounds: int) -> None:
        import jax

        for _ in range(rounds):
            if self.fixed is not None:
                self.world = self.step(self.world, self.x, self.y, self.fixed)
            else:
                self.world, self.key = self.draw(self.world, self.x, self.y, self.key)
        jax.block_until_ready(self.world)

    def weights(self) -> list[measure.Floats]:
        found = [np.asarray(v) for v in self.world]
        return [v.transpose(3, 2, 0, 1) if v.ndim == 4 and LAYOUT == "NHWC" else v for v in found]


if __name__ == "__main__":
    asked = measure.request()
    os.environ["NPROC"] = os.environ["PJRT_NPROC"] = str(asked.threads)
    measure.main(asked, Jax, ["jax", "jaxlib"])
