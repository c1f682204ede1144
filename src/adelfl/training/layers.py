"""The layers of a network, input side first: the units that devices train and deliver.

:func:`find_layers` finds the layers of any module in a forward pass; :func:`given_layers` takes a list from the user.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adelfl.errors import ConfigError

_FOLLOWERS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.PReLU,
    *([nn.RMSNorm] if hasattr(nn, "RMSNorm") else []),  # newer than the oldest supported torch
)


@dataclass(frozen=True)
class Layer:
    """One of the L layers of a model."""

    name: str
    """Name of the module that holds the layer's parameters, or the user's name for it."""
    parameters: tuple[str, ...]
    """Names as in ``model.named_parameters()``, and in that order."""


def find_layers(model: nn.Module, example: Tensor) -> tuple[Layer, ...]:
    """Find the layers of a module by running a copy of it once on an example.

    - Every module that runs and owns parameters is a layer. Layers are ordered by their first run.
    - Norms (BatchNorm, GroupNorm, LayerNorm, ...) and PReLU join the layer before them, or the first if none is before.
    - A parameter that is used without a call of its module (``out_proj`` of ``nn.MultiheadAttention``), or that belongs
      to a module whose children are layers (a position embedding), joins the nearest enclosing module that runs: its
      layer, or the first of its layers, where backpropagation has passed all uses.
    - A tied weight belongs to the layer that runs first, since its gradient is complete only when backpropagation has
      reached that use.
    - Frozen parameters (``requires_grad`` is false) are left out, and so are layers without other parameters.

    Parameters
    ----------
    model : nn.Module
        Any module that takes one tensor. It runs in evaluation mode.
    example : Tensor
        A batch of one or more inputs.

    Returns
    -------
    tuple of Layer
        Input side first: entry l − 1 is layer l of the paper. Backpropagation visits them from the last to the first.

    Raises
    ------
    ConfigError
        If nothing can be trained, the model fails on the example, or a parameter does not affect the output.
    """
    model = _copy(model)
    trainable = _trainable(model)
    owners: dict[int, list[str]] = {}
    ran: dict[str, int] = {}  # order in which modules first ran
    for name, module in model.named_modules():
        for parameter in _own(module):
            owners.setdefault(id(parameter), []).append(name)

        def note(_: nn.Module, __: object, name: str = name) -> None:
            ran.setdefault(name, len(ran))

        module.register_forward_pre_hook(note)
    _refuse_unused(trainable, reached_from(_output(model, example)))
    homes = _homes(model, ran)
    members: dict[str, set[int]] = {}
    for key in trainable:
        # An owner that did not run is placed by its parent, so owners that ran come first.
        direct = [name for name in owners[key] if name in ran]
        home = min((homes[name] for name in direct or owners[key]), key=ran.__getitem__)
        members.setdefault(home, set()).add(key)
    return tuple(
        Layer(_title(model, home, members[home]), tuple(n for key, n in trainable.items() if key in members[home]))
        for home in sorted(members, key=ran.__getitem__)
    )


def given_layers(model: nn.Module, groups: Sequence[str | Sequence[str]]) -> tuple[Layer, ...]:
    """Build layers from lists of names, instead of :func:`find_layers`.

    Parameters
    ----------
    model : nn.Module
        Any module. It is not run.
    groups : sequence of (str or sequence of str)
        One entry per layer, input side first: names as in ``model.named_modules()`` or ``model.named_parameters()``. A
        name stands for all trainable parameters below it. A tied weight may be in several entries, once under each of
        its names, and belongs to the first of these layers.

    Returns
    -------
    tuple of Layer
        In the given order.

    Raises
    ------
    ConfigError
        If a trainable parameter is in no entry or in two, or an entry contains no trainable parameter.
    """
    trainable = _trainable(model)
    every = dict(model.named_parameters(remove_duplicate=False))
    taken: dict[str, int] = {}
    layer_of: dict[int, int] = {}
    titles: list[str] = []
    for number, group in enumerate(groups, start=1):
        prefixes = [group] if isinstance(group, str) else list(group)
        titles.append(", ".join(prefixes))
        for prefix in prefixes:
            below = [name for name in every if name == prefix or name.startswith(f"{prefix}.")]
            if not below:
                known = [*(module for module, _ in model.named_modules() if module), *every]
                near = difflib.get_close_matches(prefix, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"names are like {', '.join(map(repr, known[-3:]))}"
                raise ConfigError(f"layers: entry {number} names {prefix!r}, which holds no parameters; {hint}")
            for name in below:
                if name in taken:
                    by = f"twice by entry {number}"
                    by = by if taken[name] == number else f"by entries {taken[name]} and {number}"
                    raise ConfigError(f"layers: parameter {name!r} is named {by}; name it once")
                taken[name] = number
                layer_of.setdefault(id(every[name]), number)
    for key, name in trainable.items():
        if key not in layer_of:
            raise ConfigError(f"layers: parameter {name!r} is in no entry; add it, or set requires_grad to False")
    layers = []
    for number, title in enumerate(titles, start=1):
        parameters = tuple(name for key, name in trainable.items() if layer_of[key] == number)
        if not parameters:
            raise ConfigError(f"layers: entry {number} ({title}) holds no trainable parameter of its own; remove it")
        layers.append(Layer(title, parameters))
    return tuple(layers)


def is_per_sample(model: nn.Module) -> bool:
    """Return whether no BatchNorm uses the statistics of the batch; other modules that mix samples are not detected."""
    return not any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None)
        for module in model.modules()
    )


def _trainable(model: nn.Module) -> dict[int, str]:
    """Return the name of every trainable parameter by its id, in the order of ``named_parameters``."""
    named = list(model.named_parameters())
    for name, parameter in named:
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(f"parameter {name!r} has no shape yet; run the model once on a batch before using it")
    trainable = {id(parameter): name for name, parameter in named if parameter.requires_grad}
    if not trainable:
        why = "all its parameters are frozen" if named else "it has no parameters"
        raise ConfigError(f"the model cannot be trained: {why}; give a model with parameters that require gradients")
    return trainable


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def _copy(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode."""
    _trainable(model)  # refuses parameters without a shape, which cannot be copied
    try:
        copied = deepcopy(model)
    except Exception as error:  # anything that a user's module may raise
        raise ConfigError(f"the model cannot be copied ({error})") from error
    for module in copied.modules():
        module.training = False
    return copied


def _output(model: nn.Module, example: Tensor) -> Any:  # noqa: ANN401 - whatever the model returns
    try:
        with torch.enable_grad():
            return model(example.clone())  # some models change their input
    except Exception as error:
        shape = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
        raise ConfigError(f"the model cannot be run on the example input of shape {shape}: {error}") from error


def _refuse_unused(trainable: Mapping[int, str], used: set[int]) -> None:
    if unused := [name for key, name in trainable.items() if key not in used]:
        more = f" (and {len(unused) - 1} more)" if len(unused) > 1 else ""
        raise ConfigError(
            f"parameter {unused[0]!r}{more} does not affect the model's output; "
            "remove it, or freeze it with requires_grad_(False)"
        )


def check_output(model: nn.Module, example: Tensor, classes: int) -> None:
    """Raise ConfigError unless the model returns finite scores for all classes, which depend on all its parameters."""
    model = _copy(model)
    output = _output(model, example)
    shape = tuple(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__}"
    if not isinstance(output, Tensor) or output.dim() != 2 or output.shape[0] != len(example):
        raise ConfigError(f"the model must return scores of shape (samples, {classes}), not {shape}")
    if output.shape[1] < classes:
        raise ConfigError(f"the model returns {output.shape[1]} scores per sample, but the data has {classes} classes")
    if not output.isfinite().all():
        raise ConfigError("the model's outputs are not finite at its initial weights")
    _refuse_unused(_trainable(model), reached_from(output))


def reached_from(output: object) -> set[int]:
    """Return the ids of the leaf tensors that backpropagation from an output would reach."""
    heap, nodes, leaves = [output], [], set()
    while heap:
        value = heap.pop()
        if isinstance(value, Tensor):
            nodes.append(value.grad_fn)
            leaves.add(id(value))
        elif isinstance(value, Mapping):
            heap.extend(value.values())
        elif isinstance(value, list | tuple):
            heap.extend(value)
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        nodes.extend(parent for parent, _ in node.next_functions)
    return leaves


def _homes(model: nn.Module, ran: Mapping[str, int]) -> dict[str, str]:
    """Return, for every module that owns parameters, the module whose layer they are in."""
    modules = dict(model.named_modules())
    # The parameters of a module that did not run are placed by the nearest enclosing module that did.
    nearest = {name: _nearest(name, ran) for name, module in modules.items() if _own(module)}
    order = sorted(set(nearest.values()), key=ran.__getitem__)
    main = [name for name in order if not _follows(modules[name])] or order
    # Of nested modules, the inner ones are layers; parameters of the outer ones go to the first of these.
    layers = [name for name in main if not any(_inside(other, name) for other in main)]
    home = {}
    for name in order:
        if name in layers:
            home[name] = name
        elif name in main:
            home[name] = next(layer for layer in layers if _inside(layer, name))
        else:
            before = [layer for layer in layers if ran[layer] < ran[name]]
            home[name] = before[-1] if before else layers[0]
    return {name: home[near] for name, near in nearest.items()}


def _nearest(name: str, ran: Mapping[str, int]) -> str:
    while name not in ran:
        name = name.rpartition(".")[0]
    return name


def _inside(name: str, outer: str) -> bool:
    return name != outer and (not outer or name.startswith(f"{outer}."))


def _follows(module: nn.Module) -> bool:
    """Return whether a module belongs to the layer before it: a norm, by class or by name and shapes, or a PReLU."""
    if isinstance(module, _FOLLOWERS):
        return True
    looks = "norm" in type(module).__name__.lower() and not any(True for _ in module.children())
    return looks and all(max(p.shape, default=1) == p.numel() for p in _own(module))


def _title(model: nn.Module, name: str, members: set[int]) -> str:
    """Return the outermost module that encloses ``name`` and has no trainable parameters of other layers."""
    title = name
    while outer := name.rpartition(".")[0]:
        if any(p.requires_grad and id(p) not in members for p in model.get_submodule(outer).parameters()):
            break
        title = name = outer
    return title or type(model).__name__
