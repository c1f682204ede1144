"""A custom codec: send the larger half of each parameter's changes, and the rest in a later round.

python examples/top_half.py
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

import adelfl as ad
from adelfl.runtime.codec import Array, Codec, Decoded, Memory, find_codec


class TopHalf(Codec):
    """Send half of the numbers, with their positions; remember what was not sent (error feedback)."""

    name = "top-half"

    def bytes(self, update: Mapping[str, Array]) -> int:
        """Return 4 bytes for each number that is sent, and one bit for each position."""
        return sum(4 * -(-int(value.numel()) // 2) + -(-int(value.numel()) // 8) for value in update.values())

    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Return what the server decodes, and what this device keeps for its next upload."""
        decoded, kept = {}, dict(memory)
        for name, value in update.items():
            wanted = value + memory.get(name, 0.0)
            size = wanted.abs().flatten()
            sent = size >= size.kthvalue(size.numel() // 2 + 1).values
            decoded[name] = torch.where(sent.reshape(wanted.shape), wanted, 0.0)
            kept[name] = wanted - decoded[name]
        return Decoded(decoded, kept)


def main() -> None:
    """Compare the codec with plain uploads, on devices whose uploads take most of a round."""
    torch.set_num_threads(1)  # faster for small models
    changes = ["fleet.devices=8", "fleet.upload=0.5", "training.rounds=20", "training.depth=0.5", "strategy.name=salf"]
    plain = ad.build_experiment(ad.load_run(None, changes))
    for codec in (find_codec("none"), TopHalf()):
        result = ad.simulate(replace(plain, codec=codec))
        share = codec.relative_size(dict(plain.model.named_parameters()))
        print(f"{codec.name}: {share:.0%} of the bytes, {result.depth:.0%} of the layers, {result.final_accuracy:.1%}")


if __name__ == "__main__":
    main()
