"""What a study of real processes left on the disks, read back and compared with the simulator bit for bit."""

from __future__ import annotations

import torch

from fedmap.contract.v1 import values
from fedmap.study.models import model_of
from fedmap.study.plan.reading import load_plan
from fedmap.study.tensors.parameter_files import decode_parameters, decode_prior
from fedmap_aggregator.store.blobs import BlobStore
from fedmap_lab.local.federation import LocalFederation
from fedmap_lab.simulation.simulate import Study
from tests.services.studies import SmallStudy


def assert_same_as_simulated(
    federation: LocalFederation, study: SmallStudy, status: values.StudyStatus, simulated: Study
) -> None:
    """μ, its buffers, ψ and every θ_k, bit for bit."""
    plan = load_plan(study.plan)
    network = model_of(plan).network
    blobs = BlobStore(federation.aggregator_folder / "state" / "blobs")
    prior = decode_prior(network, plan.prior, blobs.path(status.prior_digest)).prior
    expected = simulated.trained.prior
    assert expected is not None
    assert torch.equal(prior.mu, expected.mu)
    assert torch.equal(prior.psi, expected.psi)
    assert torch.equal(prior.buffers.mean, expected.buffers.mean)
    assert torch.equal(prior.buffers.variance, expected.buffers.variance)
    for site in study.sites:
        folder = federation.site_folder(site.name) / "state" / "studies" / study.name / "models"
        own = decode_parameters(network, folder / f"round-{study.rounds:04d}.safetensors")
        wanted = simulated.trained.personal[site.name]
        assert torch.equal(own.theta, wanted.theta), site.name
        assert torch.equal(own.buffers.mean, wanted.buffers.mean), site.name
        assert torch.equal(own.buffers.variance, wanted.buffers.variance), site.name
