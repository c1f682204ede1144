"""Client side of a deployment: training that stops in time.

@app.train()
def train(message, context):
    job = Job(message, Net())
    optimizer = torch.optim.SGD(job.model.parameters(), lr=job.learning_rate)
    for x, y in job.batches(trainset):
        job.backward(criterion(job.model(x), y))       # instead of loss.backward()
        optimizer.step()
    return job.reply()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, default_collate

from adelfl.clock import Clock, RealClock
from adelfl.errors import ConfigError
from adelfl.flower.protocol import STATISTICS, Report, Task, is_statistic
from adelfl.training.layers import given_layers
from adelfl.training.truncated import Answer, Truncation, check_truncation

Data = Dataset[Any] | tuple[Tensor, ...] | Iterable[Any]
"""A dataset with a length, or tensors of equal length, from which samples are drawn; or an iterable of batches, such as
a ``DataLoader`` with ``batch_size=job.batch_size``."""


class Job:
    """The work of a node in one round, which begins when the message arrives.

    Parameters
    ----------
    message : Message
        Message of the server.
    model : nn.Module
        The model, which gets the message's weights and is trained in place.
    clock : Clock, optional
        By default a real clock that starts now.
    rng : numpy.random.Generator, optional
        Generator that draws the batches.
    arrayrecord_key, configrecord_key, weighted_by_key : str
        The values of the server's strategy.
    """

    def __init__(
        self,
        message: Message,
        model: nn.Module,
        *,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        weighted_by_key: str = "num-examples",
    ) -> None:
        self.clock = clock or RealClock()
        self._arrived = self.clock.now()
        self.rng = rng or np.random.default_rng()
        self.message, self.model = message, model
        self.arrayrecord_key, self.weighted_by_key = arrayrecord_key, weighted_by_key
        self.task = Task.read(message.content.config_records[configrecord_key])
        sent = message.content.array_records[arrayrecord_key]
        load_weights(model, {name: torch.from_numpy(array.numpy()) for name, array in sent.items()})
        self.layers = given_layers(model, self.task.layers)
        named = dict(model.named_parameters())
        self._before = {name: named[name].detach().clone() for layer in self.layers for name in layer.parameters}
        self.report = Report(self.task.round)
        self.iterations_done, self.loss, self.stopped = 0, math.nan, False
        self._begun = self._last = 0.0  # times at which this step began, and its last layer ended
        self._first_layer = 0.0  # seconds from the beginning of a step to its first finished layer
        self._steps: list[float] = []  # durations of complete steps with the batch size of the first one
        self._samples = self._examples = 0  # samples of this step, and of all steps with a finished layer
        self._first_gradients: dict[str, Tensor] | None = None
        self._on_gpu = next((p.is_cuda for p in model.parameters()), False)

    @property
    def learning_rate(self) -> float:
        """η_t of this round."""
        return self.task.rate

    @property
    def batch_size(self) -> int:
        """Samples per iteration."""
        return self.task.batch

    @property
    def seconds_left(self) -> float:
        """Seconds until the training must end."""
        return self.task.seconds - self._elapsed()

    def _elapsed(self) -> float:
        return self.clock.now() - self._arrived

    def batches(self, data: Data) -> Iterator[Any]:
        """Iterate over one batch for every local iteration, until time is up.

        A step begins when the one before has ended, so that the time of loading its batch is known to be needed again.
        """
        source = self._drawn(data) if _has_samples(data) else _repeated(data)  # type: ignore[arg-type]
        for _ in range(self.task.iterations):
            if self.stopped or (self.task.pace and self._begun + self._first_layer > self.task.seconds):
                return
            batch = next(source, None)
            if batch is None:
                if self.iterations_done == 0:
                    raise ConfigError("this node has no samples; give it data with at least one sample")
                return
            self._samples = _size(batch)
            self._last = self._elapsed()
            if self.iterations_done == 0:
                self._begun = self.report.setup = self._last
                self.report.samples = self._samples
            before = self.iterations_done
            yield batch
            if self.iterations_done == before:
                raise ConfigError("job.backward(loss) was not called for a batch; call it instead of loss.backward()")

    def _drawn(self, data: Any) -> Iterator[Any]:  # noqa: ANN401
        self.report.rows = rows = len(data[0]) if isinstance(data, tuple) else len(data)
        while rows:
            if self.task.oversample:
                chosen = self.rng.integers(rows, size=self.task.batch)
            else:
                chosen = self.rng.choice(rows, size=min(self.task.batch, rows), replace=False)
            if isinstance(data, tuple):
                index = torch.from_numpy(chosen)
                yield tuple(part[index.to(part.device)] for part in data)
            else:
                yield default_collate([data[int(i)] for i in chosen])

    def backward(self, loss: Tensor) -> None:
        """Backpropagate a batch's mean loss until time is up, instead of ``loss.backward()``.

        Gradients of layers that were not reached are None, so that torch's optimizers do not change them.
        """
        with Truncation(self.model, self.layers) as truncation:
            partial = truncation.backward(loss, self._should_stop)
            for name, p in truncation.parameters.items():
                p.grad = partial.gradients.get(name)
                if self.task.proximal and p.grad is not None and name in self._before:
                    p.grad = p.grad + self.task.proximal * (p.detach() - self._before[name])
        if self.iterations_done == 0:
            self.loss = partial.loss
        if not self.task.pace and self.iterations_done < 2 and not partial.stopped:
            self._compare(partial.gradients)
        now = self._elapsed()
        seconds, self._begun = now - self._begun, now
        self.report.compute += seconds
        if partial.depth == len(self.layers) and self._samples == self.report.samples:
            self._steps.append(seconds)
        self.iterations_done += 1
        self.report.done += partial.depth
        self.stopped = partial.stopped
        self._examples += self._samples if partial.depth else 0

    def _should_stop(self, l: int) -> bool | Answer:
        """Decide whether layer l, just finished, is too late to count, and whether to stop before the next layer."""
        if self._on_gpu:
            torch.cuda.synchronize()  # hooks are called when a kernel starts, not when it is done
        now, L = self._elapsed(), len(self.layers)
        late = now > self.task.seconds
        if self.iterations_done == 0 and not late:
            self.report.times += (now - self._last,)
        self._last = now
        if late:
            return True
        following = L - l  # the next layer's position in the order of backpropagation
        if following == 1:
            self._first_layer = now - self._begun
        if following >= L:
            return False
        expected = self.task.pace[following] * self._samples if following < len(self.task.pace) else 0.0
        if now + expected <= self.task.seconds:
            return False
        return True if l == L else Answer.after_this

    def _compare(self, gradients: dict[str, Tensor]) -> None:
        """Report the squared difference of the first two gradients of a new node, layer by layer."""
        first = self._first_gradients
        if first is None:
            self._first_gradients = {name: g.detach().clone() for name, g in gradients.items()}
        elif self._samples == self.report.samples:
            squares = {name: float((g - first[name]).square().sum()) for name, g in gradients.items() if name in first}
            self.report.pair = tuple(sum(squares.get(name, 0.0) for name in layer.parameters) for layer in self.layers)

    def rehearse(self, loss: Callable[[nn.Module], Tensor]) -> None:
        """Check on a copy that the model can be truncated; ``loss`` runs the model on a batch."""
        began = self._elapsed()
        check_truncation(self.model, self.layers, loss)
        self.report.aside += self._elapsed() - began

    def reply(self, **metrics: float) -> Message:
        """Return the message to the server: changes of the finished layers, durations, and your own metrics.

        The strategy averages metrics over nodes.
        """
        L, report = len(self.layers), self.report
        names = [name for layer in self.layers[L - min(report.done, L) :] for name in layer.parameters]
        named = dict(self.model.named_parameters())
        changes = {name: (named[name].detach() - self._before[name]).cpu().numpy() for name in names}
        own: dict[str, Any] = {"train-loss": self.loss, **{key.replace("_", "-"): v for key, v in metrics.items()}}
        own[self.weighted_by_key] = max(1, self._examples)
        record = ArrayRecord({name: Array(value) for name, value in changes.items()})
        buffers = {name: b.detach().cpu().numpy() for name, b in self.model.named_buffers() if is_statistic(name)}
        report.total = self._elapsed()
        report.setup = report.setup if math.isfinite(report.setup) else report.total
        if steps := self._steps[1:] or self._steps:  # the first step is slower, since it loads code
            variance = np.var(steps, ddof=1) if len(steps) > 1 else 0.0
            report.steps = (float(report.samples), float(len(steps)), float(np.mean(steps)), float(variance))
        content = RecordDict({self.arrayrecord_key: record, "metrics": MetricRecord(own | report.write())})
        if buffers and self.iterations_done:  # a truncated step has a complete forward pass
            content[STATISTICS] = ArrayRecord({name: Array(value) for name, value in buffers.items()})
        return Message(content, reply_to=self.message)


def train(
    message: Message,
    model: nn.Module,
    data: Data,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
    optimizer: Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer] | None = None,
    **options: Any,  # noqa: ANN401
) -> Message:
    """Train at a node for one round: local iterations on batches ``(x, y)`` until time is up.

    Parameters
    ----------
    message, model
        As for :class:`Job`.
    data : dataset, tuple of tensors, or iterable
        Samples or batches; see :data:`Data`.
    loss : callable
        Mean loss of outputs and labels.
    optimizer : callable, optional
        Function of the parameters and the round's learning rate that returns an optimizer. The default is SGD without
        an optimizer of torch, whose first step takes two seconds of imports in every round, which is a new process.
    **options
        As for :class:`Job`.
    """
    job = Job(message, model, **options)
    steps = None if optimizer is None else optimizer(model.parameters(), job.learning_rate)
    model.train()
    first: tuple[Tensor, Tensor] | None = None
    for x, y in job.batches(data):
        first = first or (x, y)
        job.backward(loss(model(x), y))
        if steps is not None:
            steps.step()
        else:
            plain_step(model, job.learning_rate)
    if not job.task.pace and first is not None:
        x, y = first
        job.rehearse(lambda module: loss(module(x), y))
    return job.reply()


@torch.no_grad()
def plain_step(model: nn.Module, rate: float) -> None:
    """Take a step of SGD, w ← w − η g, with the parameters that have a gradient."""
    for p in model.parameters():
        if p.grad is not None:
            p.add_(p.grad, alpha=-rate)


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load the server's weights into a model; a parameter with two names must have only one of them there."""
    names: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    for same in names.values():
        if len(sent := [name for name in same if name in weights]) > 1:
            raise ConfigError(
                f"{sent[0]!r} and {sent[1]!r} are one parameter, and only one of them would be trained; "
                f"leave {sent[1]!r} out of initial_arrays"
            )
    other_names = {name for same in names.values() if set(same) & weights.keys() for name in same} - weights.keys()
    try:
        keys = model.load_state_dict(weights, strict=False)
        wrong = sorted({*keys.missing_keys, *keys.unexpected_keys} - other_names)
    except RuntimeError as error:
        raise ConfigError(f"the server's weights belong to another model: {' '.join(str(error).split())}") from None
    if wrong:
        raise ConfigError(f"the server's weights belong to another model: only one of the two has {wrong[0]!r}")


def _repeated(loader: Iterable[Any]) -> Iterator[Any]:
    """Iterate over a loader's batches repeatedly."""
    while True:
        batch = None
        for batch in loader:
            yield batch
        if batch is None:
            return


def _size(batch: Any) -> int:  # noqa: ANN401
    """Return the number of samples in a batch: a tensor, or several in a tuple, a list or a mapping."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    return len(batch[0]) if isinstance(batch, tuple | list) else len(batch)


def _has_samples(data: object) -> bool:
    return isinstance(data, tuple) or (hasattr(data, "__getitem__") and hasattr(data, "__len__"))
