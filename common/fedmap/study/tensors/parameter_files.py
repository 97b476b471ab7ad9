"""The tensors that travel or rest between rounds, as files: models, priors, statistics and baseline terms.

Encoding is deterministic; decoding is strict (`files.tensors`) and gives values that fit the model, or a
`ModelError` that names what does not. Digests, sizes and disks are the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedmap.algorithm.fit.round import OwnModel
from fedmap.algorithm.model.layers import Buffers
from fedmap.algorithm.model.network import Network
from fedmap.algorithm.model.parameters import ParameterSpec
from fedmap.algorithm.pooling.baseline import BaselineTerms
from fedmap.algorithm.pooling.statistics import FeatureStatistics, Scaler
from fedmap.algorithm.prior.aggregation import SiteParameters
from fedmap.algorithm.prior.convex_network import ConvexNetwork
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import PriorSettings
from fedmap.errors import ModelError
from fedmap.files.tensors import (
    Array,
    Expected,
    decode_tensors,
    encode_tensors,
    file_bytes,
    most_bytes,
    scan_tensors,
    tensor_names,
)

_MULTIPLIER = "multiplier."
_BASELINE = ("events", "position", "risk_start", "risk_end")
_MOST_MEAN = 1e15  # of batch-norm statistics that are pooled: its square is far from the end of float32
_MOST_BATCHES = 10**15  # far from the end of int64: sites go on counting from the largest


@dataclass(frozen=True)
class PriorFile:
    """What a site needs to start a round: γ = (μ, ψ), and the scaler its features go through."""

    prior: Prior
    scaler: Scaler


def named_parameters(network: Network, parameters: SiteParameters) -> dict[str, Tensor]:
    """θ by name, and the batch-norm statistics where the network has any."""
    return network.spec.to_mapping(parameters.theta) | _named_buffers(parameters.buffers)


def expected_parameters(network: Network) -> dict[str, Expected]:
    """The tensors of `named_parameters`."""
    return _expected(network.spec, "") | _expected_buffers(network)


def encode_parameters(network: Network, parameters: SiteParameters) -> bytes:
    return encode_tensors(named_parameters(network, parameters))


def decode_parameters(network: Network, source: bytes | Path, what: str = "the parameters") -> SiteParameters:
    arrays = decode_tensors(source, expected_parameters(network), what)
    return SiteParameters(_flat(network.spec, arrays, ""), _buffers(network, arrays, what))


def encode_own_model(network: Network, own: OwnModel) -> bytes:
    """For the site's own disk: what it keeps between rounds."""
    named = named_parameters(network, own.parameters)
    if own.multiplier is not None:
        named |= _prefixed(network.spec, own.multiplier, _MULTIPLIER)
    return encode_tensors(named)


def decode_own_model(network: Network, source: bytes | Path, what: str = "the own model") -> OwnModel:
    """After a consensus round a multiplier is among the tensors."""
    data, expected = file_bytes(source), expected_parameters(network)
    has_multiplier = any(name.startswith(_MULTIPLIER) for name in tensor_names(data, what))
    if has_multiplier:
        expected = expected | _expected(network.spec, _MULTIPLIER)
    arrays = decode_tensors(data, expected, what)
    parameters = SiteParameters(_flat(network.spec, arrays, ""), _buffers(network, arrays, what))
    return OwnModel(parameters, _flat(network.spec, arrays, _MULTIPLIER) if has_multiplier else None)


def parameters_norm(network: Network, path: Path, what: str = "the parameters") -> float:
    """‖θ‖ of a file that `decode_parameters` would take, without ever holding it in memory as a whole.

    Batch-norm statistics must be such that they can be pooled with any others and stay finite.
    """
    buffers = _expected_buffers(network)
    scan = scan_tensors(path, _expected(network.spec, "") | buffers, what, keep=buffers)
    found = _buffers(network, scan.kept, what)
    absurd = bool((found.mean.abs() > _MOST_MEAN).any() or (found.variance > _MOST_MEAN**2).any())
    if absurd or bool((found.count > _MOST_BATCHES).any()):
        raise _impossible(what, "batch-norm statistics are absurdly large")
    return math.sqrt(sum(scan.squares[name] for name in network.spec.names))


def encode_theta(network: Network, theta: Tensor) -> bytes:
    """Parameters without statistics: the first model."""
    return encode_tensors(network.spec.to_mapping(theta))


def decode_theta(network: Network, source: bytes | Path, what: str = "the first model") -> Tensor:
    return _flat(network.spec, decode_tensors(source, _expected(network.spec, ""), what), "")


def encode_prior(network: Network, settings: PriorSettings, file: PriorFile) -> bytes:
    prior, scaler = file.prior, file.scaler
    named = _prefixed(network.spec, prior.mu, "mu.") | _named_buffers(prior.buffers)
    if settings.convex:
        psi = ConvexNetwork(network.spec, settings).spec
        named |= _prefixed(psi, prior.psi, "psi.")
    return encode_tensors(named | {"scaler.mean": scaler.mean, "scaler.deviation": scaler.deviation})


def decode_prior(
    network: Network, settings: PriorSettings, source: bytes | Path, what: str = "the prior"
) -> PriorFile:
    expected, psi_spec = _expected_prior(network, settings)
    arrays = decode_tensors(source, expected, what)
    if not bool((arrays["scaler.deviation"] > 0).all()):
        raise _impossible(what, "scaler.deviation is not above zero everywhere")
    psi = torch.zeros(0) if psi_spec is None else _flat(psi_spec, arrays, "psi.")
    prior = Prior(_flat(network.spec, arrays, "mu."), _buffers(network, arrays, what), psi)
    return PriorFile(prior, Scaler(_tensor(arrays["scaler.mean"]), _tensor(arrays["scaler.deviation"])))


def expected_psi(network: Network, settings: PriorSettings) -> dict[str, Expected]:
    """ψ by name; nothing where the prior is quadratic only."""
    return _expected(ConvexNetwork(network.spec, settings).spec, "") if settings.convex else {}


def encode_psi(network: Network, settings: PriorSettings, psi: Tensor) -> bytes:
    """ψ alone: what a bundle adds to μ for sites that fine-tune."""
    if not settings.convex:
        return encode_tensors({})
    return encode_tensors(ConvexNetwork(network.spec, settings).spec.to_mapping(psi))


def decode_psi(
    network: Network, settings: PriorSettings, source: bytes | Path, what: str = "the penalty"
) -> Tensor:
    arrays = decode_tensors(source, expected_psi(network, settings), what)
    if not settings.convex:
        return torch.zeros(0)
    return _flat(ConvexNetwork(network.spec, settings).spec, arrays, "")


def most_prior_bytes(network: Network, settings: PriorSettings) -> int:
    """No prior of this model has a larger file."""
    return most_bytes(_expected_prior(network, settings)[0])


def encode_statistics(statistics: FeatureStatistics) -> bytes:
    """Mean and M2; the number of rows travels in the message beside them."""
    return encode_tensors({"mean": statistics.mean, "m2": statistics.m2})


def decode_statistics(
    source: bytes | Path, rows: int, inputs: int, what: str = "the statistics"
) -> FeatureStatistics:
    arrays = decode_tensors(source, dict.fromkeys(("mean", "m2"), Expected("F64", (inputs,))), what)
    if bool((arrays["m2"] < 0).any()):
        raise _impossible(what, "m2 is negative somewhere")
    return FeatureStatistics(rows, _tensor(arrays["mean"]), _tensor(arrays["m2"]))


def named_baseline(terms: BaselineTerms) -> dict[str, Tensor]:
    """The sums; how many intervals were joined travels in the message beside them."""
    return {name: getattr(terms, name) for name in _BASELINE}


def expected_baseline(times: int) -> dict[str, Expected]:
    return dict.fromkeys(_BASELINE, Expected("F64", (times,)))


def baseline_of(arrays: Mapping[str, Array], joined: int, what: str) -> BaselineTerms:
    """The terms among the tensors of a file."""
    for name in _BASELINE:
        if bool((arrays[name] < 0).any()):
            raise _impossible(what, f"{name} is negative somewhere")
    events, position, start, end = (_tensor(arrays[name]) for name in _BASELINE)
    return BaselineTerms(events, position, start, end, joined)


def _named_buffers(buffers: Buffers) -> dict[str, Tensor]:
    if not buffers.mean.numel():
        return {}
    return {
        "buffers.mean": buffers.mean.clone(),
        "buffers.variance": buffers.variance.clone(),
        "buffers.count": buffers.count.clone(),
    }


def _prefixed(spec: ParameterSpec, flat: Tensor, prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in spec.to_mapping(flat).items()}


def _expected(spec: ParameterSpec, prefix: str) -> dict[str, Expected]:
    pairs = zip(spec.names, spec.shapes, strict=True)
    return {f"{prefix}{name}": Expected("F32", shape) for name, shape in pairs}


def _expected_prior(
    network: Network, settings: PriorSettings
) -> tuple[dict[str, Expected], ParameterSpec | None]:
    """All tensors of a prior, and the layout of ψ where there is one."""
    expected = _expected(network.spec, "mu.") | _expected_buffers(network)
    expected |= dict.fromkeys(("scaler.mean", "scaler.deviation"), Expected("F32", (network.inputs,)))
    psi_spec = ConvexNetwork(network.spec, settings).spec if settings.convex else None
    return expected | (_expected(psi_spec, "psi.") if psi_spec is not None else {}), psi_spec


def _expected_buffers(network: Network) -> dict[str, Expected]:
    if not network.channels:
        return {}
    channels = Expected("F32", (sum(network.channels),))
    return {
        "buffers.mean": channels,
        "buffers.variance": channels,
        "buffers.count": Expected("I64", (len(network.channels),)),
    }


def _buffers(network: Network, arrays: Mapping[str, Array], what: str) -> Buffers:
    if not network.channels:
        return network.initial_buffers()
    for name in ("buffers.variance", "buffers.count"):
        if bool((arrays[name] < 0).any()):
            raise _impossible(what, f"{name} is negative somewhere")
    mean, variance, count = (_tensor(arrays[f"buffers.{name}"]) for name in ("mean", "variance", "count"))
    return Buffers(mean, variance, count)


def _flat(spec: ParameterSpec, arrays: Mapping[str, Array], prefix: str) -> Tensor:
    """One vector in the model's order, whatever the order in the file."""
    return torch.from_numpy(np.concatenate([arrays[prefix + name].ravel() for name in spec.names]))


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array.copy())


def _impossible(what: str, fault: str) -> ModelError:
    return ModelError(
        f"{what}: {fault}", hint="refuse it, and look for the defect in the software that made it"
    )
