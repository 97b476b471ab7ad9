"""The registry of architectures. A study plan names one; no code ever travels.

The paper's three networks, a configurable MLP, and a linear model. Widths follow the paper's tables; where
dropout stands in the eICU network, which the tables leave out, is settled in docs/adr/0004.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fedmap.algorithm.fit.values import Model
from fedmap.algorithm.model.layers import BatchNorm, Dropout, Layer, Linear, Relu
from fedmap.algorithm.model.network import Branch, Network
from fedmap.errors import ModelError
from fedmap.study.plan.inputs import planned_inputs
from fedmap.study.plan.sections import ModelSection
from fedmap.study.plan.study_plan import StudyPlan

EICU_GROUPS = ("drugs", "diagnoses", "physiology")


TWO_LOGITS = ("interval_iron", "eicu_mortality")  # the paper gives these one output per class


def model_of(plan: StudyPlan) -> Model:
    """The plan's model, from the plan alone: no data are needed to know its inputs."""
    inputs = planned_inputs(plan)
    return build_model(plan, inputs.groups, inputs.count)


def build_model(plan: StudyPlan, groups: Sequence[tuple[str, Sequence[int]]], inputs: int) -> Model:
    """The plan's network with the likelihood its task is trained by."""
    if plan.task.kind == "cox":
        return Model(build_network(plan.model, groups, inputs, 1), "cox")
    if plan.task.kind == "binary" and plan.model.name not in TWO_LOGITS:
        return Model(build_network(plan.model, groups, inputs, 1), "bernoulli")
    classes = 2 if plan.task.kind == "binary" else len(plan.task.classes)
    return Model(build_network(plan.model, groups, inputs, classes), "categorical")


def build_network(
    settings: ModelSection, groups: Sequence[tuple[str, Sequence[int]]], inputs: int, outputs: int
) -> Network:
    """The network of a plan for features in `groups` (name, column indices) and `outputs` logits."""
    dropout = settings.dropout
    match settings.name:
        case "linear":
            return Network(inputs, outputs, (), (Linear(inputs, outputs),))
        case "mlp":
            trunk = _blocks((inputs, *settings.hidden), dropout, settings.batch_norm)
            return Network(inputs, outputs, (), (*trunk, Linear(settings.hidden[-1], outputs)))
        case "cprd_survival":
            trunk = _blocks((inputs, 64, 32, 16), dropout, batch_norm=True)
            return Network(inputs, outputs, (), (*trunk, Linear(16, outputs)))
        case "interval_iron":
            trunk = _blocks((inputs, 64, 64), dropout, batch_norm=True)
            return Network(inputs, outputs, (), (*trunk, Linear(64, outputs)))
        case "eicu_mortality":
            return _eicu_mortality(groups, inputs, outputs, dropout)


def _blocks(widths: Sequence[int], dropout: float, batch_norm: bool) -> tuple[Layer, ...]:
    """Linear, ReLU, BatchNorm, Dropout for each pair of widths."""
    layers: list[Layer] = []
    for inputs, outputs in pairwise(widths):
        layers += [Linear(inputs, outputs), Relu()]
        if batch_norm:
            layers.append(BatchNorm(outputs))
        layers.append(Dropout(dropout, outputs))  # also at rate 0: names must not depend on the rate
    return tuple(layers)


def _eicu_mortality(
    groups: Sequence[tuple[str, Sequence[int]]], inputs: int, outputs: int, dropout: float
) -> Network:
    """Three towers to five numbers each, then 15→15→10→5→outputs."""
    columns = dict(groups)
    missing = [name for name in EICU_GROUPS if name not in columns]
    if missing or set(columns) - set(EICU_GROUPS):
        raise ModelError(
            f"eicu_mortality needs the feature groups {', '.join(EICU_GROUPS)}; "
            f"the plan has {', '.join(sorted(map(repr, columns)))}",
            hint="give every feature of the plan one of these groups",
        )
    towers = {"drugs": (100, 50, 10), "diagnoses": (100, 50, 10), "physiology": (40, 20, 10)}
    branches: list[Branch] = []
    for name in EICU_GROUPS:
        start, stop = min(columns[name], default=0), max(columns[name], default=-1) + 1
        if not columns[name] or list(columns[name]) != list(range(start, stop)):
            raise ModelError(
                f"the features of group {name} are none, or not next to each other",
                hint="list the features of one group together in the plan",
            )
        hidden = _blocks((stop - start, *towers[name]), dropout, batch_norm=False)
        branches.append(Branch(name, start, stop, (*hidden, Linear(10, 5))))
    head = _blocks((15, 15, 10, 5), 0.0, batch_norm=False)
    return Network(inputs, outputs, tuple(branches), (*head, Linear(5, outputs)))
