"""The settings that tuning tries for a method: the same number of trials for every method.

A method declares the values of its own hyperparameters (`Method.space`); learning rate and weight decay are
tuned for all. The first trial is the plan's own setting with the method's defaults; the others are drawn
from the grid without repetition, by a seed that depends on nothing but the method's name.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product

from fedmap.algorithm.seeding import derive_seed, numpy_stream
from fedmap.algorithm.settings import FedmapSettings, TrainingSettings
from fedmap.errors import FedmapError
from fedmap_lab.comparison.results import Setting
from fedmap_lab.federation.sites import Federation
from fedmap_lab.methods.method import Method

SHARED = ("learning_rate", "weight_decay")
LEARNING_RATE_FACTORS = (0.3, 1.0, 3.0)
WEIGHT_DECAYS = (0.0, 1e-4, 1e-2)
TUNING_SEED = 1_000_003
"""Trains the trials. No run of a comparison has it."""


def draw_trials(name: str, method: Method, settings: FedmapSettings, count: int) -> tuple[Setting, ...]:
    """`count` settings, the default first."""
    default = all_settings({}, method, settings)
    found = [setting for setting in _grid(method, settings.training) if setting != default]
    if count > len(found) + 1:
        raise FedmapError(
            f"{count} trials are asked for, and the search space of {name} has {len(found) + 1} settings",
            hint=f"give --trials at most {len(found) + 1}: every method gets the same number",
        )
    order = numpy_stream(derive_seed(TUNING_SEED, "trials", name)).permutation(len(found))
    return ({}, *(found[int(i)] for i in order[: count - 1]))


def apply(setting: Setting, method: Method, federation: Federation) -> tuple[Method, Federation]:
    """The method and the federation as a setting has them."""
    own = {name: value for name, value in setting.items() if name not in SHARED}
    training = federation.settings.training
    training = replace(
        training,
        learning_rate=setting.get("learning_rate", training.learning_rate),
        weight_decay=setting.get("weight_decay", training.weight_decay),
    )
    settings = replace(federation.settings, training=training)
    return replace(method, **own), replace(federation, settings=settings)  # type: ignore[type-var]


def all_settings(setting: Setting, method: Method, settings: FedmapSettings) -> dict[str, float]:
    """Every tunable hyperparameter with the value that it has."""
    training = settings.training
    shared = {"learning_rate": training.learning_rate, "weight_decay": training.weight_decay}
    return shared | method.hyperparameters(settings) | dict(setting)


def _grid(method: Method, training: TrainingSettings) -> list[dict[str, float]]:
    rates = [min(1.0, factor * training.learning_rate) for factor in LEARNING_RATE_FACTORS]
    decays = sorted({training.weight_decay, *WEIGHT_DECAYS})
    known = {field.name for field in fields(method)}  # type: ignore[arg-type]
    assert set(method.space) <= known, "a search space may only name fields of its method"
    axes = {"learning_rate": tuple(dict.fromkeys(rates)), "weight_decay": tuple(decays), **method.space}
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
