"""Small sites and networks shared by the tests of the algorithm. Nothing here computes an expected value."""

from __future__ import annotations

import numpy as np
import torch

from fedmap.algorithm.examples import Examples
from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.model.layers import BatchNorm, Dropout, Linear, Relu
from fedmap.algorithm.model.likelihood import LikelihoodName
from fedmap.algorithm.model.network import Branch, Network

FEATURES = 4
CLASSES = 3


def make_rows(likelihood: LikelihoodName, rows: int, seed: int) -> Examples:
    """A site's rows with a little signal; survival times are tied."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(rows, FEATURES)).astype(np.float32)
    score = features[:, 0] - 0.5 * features[:, 1] + draw.normal(size=rows)
    if likelihood == "cox":
        time = np.ceil(4 * np.exp(-0.3 * score))
        event = draw.random(rows) < 0.7
        event[:1] = True
        return Examples(torch.from_numpy(features), torch.from_numpy(time), torch.from_numpy(event))
    classes = 2 if likelihood == "bernoulli" else CLASSES
    label = np.clip(np.floor(score + classes / 2), 0, classes - 1).astype(np.int64)
    return Examples(torch.from_numpy(features), torch.from_numpy(label))


def make_model(likelihood: LikelihoodName) -> Model:
    """Two towers, a joined trunk, batch-norm and dropout in both: everything a registry model can have."""
    outputs = CLASSES if likelihood == "categorical" else 1
    left = Branch("left", 0, 3, (Linear(3, 5), Relu(), BatchNorm(5), Dropout(0.2, 5), Linear(5, 2)))
    right = Branch("right", 3, 4, (Linear(1, 2), Relu()))
    trunk = (Linear(4, 6), Relu(), BatchNorm(6), Dropout(0.1, 6), Linear(6, outputs))
    return Model(Network(FEATURES, outputs, (left, right), trunk), likelihood)
