"""A custom codec: send the sign of every number and one scale per parameter, and correct the error in a later round.

python examples/sign_codec.py
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

import adelfl as ad
from adelfl.runtime.codec import Array, Codec, Decoded, Memory, find_codec


class Sign(Codec):
    """Send one bit per number, and remember the error on the device (error feedback)."""

    name = "sign"

    def bytes(self, update: Mapping[str, Array]) -> int:
        """Return one bit for each number, and four bytes for the scale of each parameter."""
        return sum(4 + -(-int(value.nbytes) // int(value.itemsize) // 8) for value in update.values())

    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Return what the server decodes, and what this device keeps for its next upload."""
        decoded, kept = {}, dict(memory)
        for name, value in update.items():
            wanted = value + memory.get(name, 0.0)
            scale = abs(wanted).mean()
            decoded[name] = scale * ((wanted >= 0) * 2.0 - 1.0)
            kept[name] = wanted - decoded[name]
        return Decoded(decoded, kept)


def main() -> None:
    """Compare the codec with plain uploads, on devices whose uploads take most of a round."""
    torch.set_num_threads(1)  # faster for small models
    changes = ["fleet.devices=8", "fleet.upload=0.5", "training.rounds=20", "training.depth=0.5", "strategy.name=salf"]
    plain = ad.build_experiment(ad.load_run(None, changes))
    for codec in (find_codec("none"), Sign()):
        result = ad.simulate(replace(plain, codec=codec))
        size = codec.relative_size(dict(plain.model.named_parameters()))
        print(f"{codec.name}: {size:.0%} of the bytes, {result.depth:.0%} of the layers, {result.final_accuracy:.1%}")


if __name__ == "__main__":
    main()
