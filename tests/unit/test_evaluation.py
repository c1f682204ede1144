"""Evaluation: the mean over the test set, whatever layout and parts it is computed in."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from adelfl.simulation import evaluation
from adelfl.simulation.evaluation import Evaluation
from adelfl.training.models import build_model


class Viewed(nn.Module):
    """A view of the convolution's output, which takes contiguous images only."""

    def __init__(self):
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 4, 3), nn.Linear(144, 5)

    def forward(self, x):
        return self.dense(self.conv(x).view(-1, 144))


MODELS = {
    "channels last": lambda: build_model("cnn", input_shape=(3, 8, 8), classes=5, seed=0),
    "contiguous": Viewed,
    "vectors": lambda: nn.Linear(12, 5),
    "in place": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(192, 5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_accuracy_are_means_over_all_samples(name, monkeypatch):
    monkeypatch.setattr(evaluation, "_IMAGES_AT_ONCE", 16)  # several parts, the last of them smaller
    torch.manual_seed(0)
    model = MODELS[name]().train()
    x = torch.randn(37, *((12,) if name == "vectors" else (3, 8, 8)))
    y, before = torch.randint(0, 5, (37,)), x.clone()
    evaluate = Evaluation(model, x, y)
    with torch.no_grad():
        logits = model(x.clone())
    loss, accuracy = evaluate()
    assert loss == pytest.approx(functional.cross_entropy(logits, y).item(), rel=1e-5)
    assert accuracy == int((logits.argmax(1) == y).sum()) / 37
    assert (evaluate(), model.training) == ((loss, accuracy), True)
    assert torch.equal(x, before)


def test_accuracy_on_a_mixture_of_classes_weighs_each_class_by_its_share():
    y = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    answers = torch.tensor([0, 0, 0, 1, 1, 0, 2])  # 3/4 of class 0, 1/2 of class 1, all of class 2
    evaluate = Evaluation(nn.Identity(), functional.one_hot(answers, 4).float(), y)
    _, accuracy = evaluate()
    assert evaluate.accuracy_on(np.array([4, 2, 1, 0])) == pytest.approx(accuracy)  # the test set's own mixture
    assert evaluate.accuracy_on(np.array([0, 3, 1, 0])) == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)
    assert evaluate.accuracy_on(np.array([0, 1, 0, 9])) == 0.5  # class 3 is not in the test set
    assert np.isnan(evaluate.accuracy_on(np.array([0, 0, 0, 1])))
