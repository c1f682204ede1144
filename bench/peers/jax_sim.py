"""Train with JAX: jit of the gradients of all devices, one compiled call per round.

With one local step, the average of the new weights is one step along the average gradient, as in vmap_sim.py. Images
are NHWC, and pooling is a maximum over a reshaped axis. On a CPU, XLA is slower with the other layout, and much slower
at the gradient of ``reduce_window``.

The row ``jax`` keeps devices apart, which is necessary for several local steps and for devices that deliver different
layers. Its variants are ``vmap``; ``scan``, which processes one device after another in the compiled round and is
faster if stacked gradients do not fit into the cache; and ``calls``, one compiled call per device, which is faster with
convolutions. XLA has no fast kernel for the grouped convolutions of ``vmap``, nor for convolutions inside a scan. The
row ``jax-batch`` has the variant ``one_batch``, in which the rows of all devices are one batch, as in batch_sim.py.

Several local steps are a scan within the ``vmap``, or unrolled (``vmap_unrolled``), or part of the calls, where the
convolutions are not in a scan.
"""

from __future__ import annotations

import os
from functools import partial

import measure
import numpy as np
from workloads import CLASSES, Conv, Dense, Flatten, Floats, Pool, Relu, first_weights, samples


def _swap(arrays: list[Floats], *axes: int) -> list[Floats]:
    """Reorder the axes of the kernels."""
    return [np.ascontiguousarray(a.transpose(axes)) if a.ndim == 4 else a for a in arrays]


class Jax:
    """FedAvg as one compiled function: draw, gather, compute all gradients, average, step."""

    def __init__(self, request: measure.Request) -> None:
        import jax
        import jax.numpy as jnp
        from jax import Array, lax

        w = request.workload
        variant = request.variant or "vmap"

        def forward(weights: list[Array], x: Array) -> Array:
            rest = iter(weights)
            for step in w.model:
                match step:
                    case Dense():
                        x = x @ next(rest).T + next(rest)
                    case Conv():
                        pad = [(step.padding, step.padding)] * 2
                        layouts = ("NHWC", "HWIO", "NHWC")
                        x = lax.conv_general_dilated(x, next(rest), (1, 1), pad, dimension_numbers=layouts) + next(rest)
                    case Relu():
                        x = jax.nn.relu(x)
                    case Pool():
                        batch, height, width, channels = x.shape
                        x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))
                    case Flatten():
                        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
            return x

        def loss(weights: list[Array], x: Array, y: Array) -> Array:
            scores = jax.nn.log_softmax(forward(weights, x))
            return -(jax.nn.one_hot(y, CLASSES) * scores).sum(1).mean()

        def draw(key: Array) -> tuple[Array, Array]:
            """Return rows of shape (steps, devices, batch), and the key for the next round."""
            if request.batches is not None:
                return jnp.asarray(request.batches), key
            following, mine = jax.random.split(key)
            return jax.random.randint(mine, (w.steps, w.devices, w.batch), 0, w.samples), following

        def moved(weights: list[Array], average: list[Array]) -> list[Array]:
            return [v - w.rate * g for v, g in zip(weights, average, strict=True)]

        def trained(weights: list[Array], x: Array, y: Array, unroll: int) -> list[Array]:
            """Return the weights of a device after its steps, on (steps, batch) samples."""

            def one(local: list[Array], batch: tuple[Array, Array]) -> tuple[list[Array], None]:
                return moved(local, jax.grad(loss)(local, *batch)), None

            return lax.scan(one, weights, (x, y), unroll=unroll)[0]

        @partial(jax.jit, donate_argnums=0)
        def one_round(weights: list[Array], key: Array, x: Array, y: Array) -> tuple[list[Array], Array]:
            rows, key = draw(key)
            device = jnp.arange(w.devices)[:, None]
            x, y = (v.at[device, rows].get(mode="promise_in_bounds") for v in (x, y))
            if w.steps > 1:
                each = partial(trained, unroll=w.steps if variant == "vmap_unrolled" else 1)
                stacked = jax.vmap(each, in_axes=(None, 1, 1))(weights, x, y)
                return [v.mean(0) for v in stacked], key
            x, y = x[0], y[0]
            if variant == "one_batch":
                together = (v.reshape(w.devices * w.batch, *v.shape[2:]) for v in (x, y))
                return moved(weights, jax.grad(loss)(weights, *together)), key
            if variant == "vmap":
                stacked = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(weights, x, y)
                return moved(weights, [g.mean(0) for g in stacked]), key

            def add(total: list[Array], batch: tuple[Array, Array]) -> tuple[list[Array], None]:
                return [t + g for t, g in zip(total, jax.grad(loss)(weights, *batch), strict=True)], None

            total, _ = lax.scan(add, [jnp.zeros_like(v) for v in weights], (x, y))
            return moved(weights, [t / w.devices for t in total]), key

        @partial(jax.jit, donate_argnums=1)
        def one_device(
            weights: list[Array], average: list[Array], x: Array, y: Array, rows: Array, u: int
        ) -> list[Array]:
            local = weights
            for step in range(w.steps):
                batch = (v.at[u, rows[step, u]].get(mode="promise_in_bounds") for v in (x, y))
                local = moved(local, jax.grad(loss)(local, *batch))
            return [a + v / w.devices for a, v in zip(average, local, strict=True)]

        draw_once, zeros = jax.jit(draw), jax.jit(lambda weights: [jnp.zeros_like(v) for v in weights])

        def round_by_calls(weights: list[Array], key: Array, x: Array, y: Array) -> tuple[list[Array], Array]:
            rows, key = draw_once(key)
            average = zeros(weights)
            for u in range(w.devices):
                average = one_device(weights, average, x, y, rows, u)
            return average, key

        x, y = samples(w)
        if x.ndim == 5:
            x = np.ascontiguousarray(x.transpose(0, 1, 3, 4, 2))
        self.x, self.y = jnp.asarray(x), jnp.asarray(y, dtype=jnp.int32)
        self.world = [jnp.asarray(v) for v in _swap(first_weights(w), 2, 3, 1, 0)]
        self.key = jax.random.key(0)
        self.round = round_by_calls if variant == "calls" else one_round

    def run(self, rounds: int) -> None:
        """Train, and wait for the last round, because JAX computes asynchronously."""
        import jax

        for _ in range(rounds):
            self.world, self.key = self.round(self.world, self.key, self.x, self.y)
        jax.block_until_ready(self.world)

    def weights(self) -> list[Floats]:
        """Return the global weights in torch's layouts."""
        return _swap([np.asarray(v) for v in self.world], 3, 2, 0, 1)


if __name__ == "__main__":
    request = measure.request()
    os.environ["PJRT_NPROC"] = str(request.threads)  # the size of XLA's thread pool
    measure.main(request, Jax, ["jax", "jaxlib"])
