"""Where a node keeps its own model θ_k between rounds: on its disk, or in Flower's context.

A hospital's node uses its disk: a restarted SuperNode goes on where it was. A simulated node has no disk of
its own, and may run on another machine of a Ray cluster in the next round: its model travels with its
context.
"""

from __future__ import annotations

from typing import Protocol

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedmap.algorithm.fit.round import OwnModel
from fedmap.algorithm.model.network import Network
from fedmap.study.tensors.parameter_files import decode_own_model, encode_own_model
from fedmap_flower.records import tensor_bytes, tensor_record

_MODEL, _ROUND = "fedmap.model", "fedmap.round"


class OwnModels(Protocol):
    """One node's models in one run; the site agent's `SiteState` keeps them on a disk."""

    def newest_model(self, study: str, network: Network, before: int | None = None) -> OwnModel | None:
        """The newest model, of a round below `before` where that is given; None: there is none yet."""

    def save_model(self, study: str, number: int, network: Network, model: OwnModel) -> None:
        """The model after a round."""


class ModelsInContext:
    """The last two models: a round that is asked again starts where it started before."""

    def __init__(self, state: RecordDict) -> None:
        self._state = state

    def newest_model(self, study: str, network: Network, before: int | None = None) -> OwnModel | None:  # noqa: ARG002 - a run is of one study
        for place in ("", ".before"):
            number, record = self._state.get(_ROUND + place), self._state.get(_MODEL + place)
            if not isinstance(number, ConfigRecord) or not isinstance(record, ArrayRecord):
                return None
            if before is None or int(str(number["round"])) < before:
                return decode_own_model(network, tensor_bytes(record))
        return None

    def save_model(self, study: str, number: int, network: Network, model: OwnModel) -> None:  # noqa: ARG002
        held = self._state.get(_ROUND)
        if isinstance(held, ConfigRecord) and held["round"] != number:
            self._state[_ROUND + ".before"] = held
            self._state[_MODEL + ".before"] = self._state[_MODEL]
        self._state[_ROUND] = ConfigRecord({"round": number})
        self._state[_MODEL] = tensor_record(encode_own_model(network, model))
