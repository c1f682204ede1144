"""A model as a function of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from torch import Tensor, nn
from torch.func import functional_call


class Stateless:
    """Calls a model with weights, and perhaps buffers, other than its own, which stay as they are.

    ``torch.func.functional_call`` alone leaves a module that stands in two places with the weights of the last call.

    Parameters
    ----------
    model : nn.Module
        Any module that takes one tensor.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        name_of = {id(value): name for name, value in chain(model.named_parameters(), model.named_buffers())}
        # Once for each module that has it, which is not once for each name.
        self.places = [
            (f"{prefix}.{key}" if prefix else key, name_of[id(value)])
            for prefix, module in model.named_modules()
            for key, value in (*module._parameters.items(), *module._buffers.items())
            if value is not None
        ]

    def __call__(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The output for ``x`` with such values of parameters and buffers, named as in the model."""
        given = {place: values[name] for place, name in self.places if name in values}
        out: Tensor = functional_call(self.model, given, (x,), tie_weights=False)
        return out
