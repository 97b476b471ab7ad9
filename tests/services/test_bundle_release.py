"""From a study of real processes to bundles in the hands of sites and clinics, by gRPC, HTTPS and links."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from fedmap.bundles.loading import load_prior, load_shared
from fedmap.bundles.verification import Trust, VerifiedBundle, verify_bundle
from fedmap.bundles.withdrawals import read_withdrawals
from fedmap.contract.v1 import values
from fedmap.errors import FedmapError, NotAllowedError, NotFoundError, StateError
from fedmap.files.digests import sha256_hex
from fedmap.study.models import model_of
from fedmap.study.plan.reading import load_plan
from fedmap.study.tensors.parameter_files import decode_prior
from fedmap.transport.client import ContractClient, Credentials, Route
from fedmap.trust.pki import Identity, key_pem, make_csr, new_key
from fedmap_aggregator.store.blobs import BlobStore
from fedmap_lab.local.federation import LocalFederation, free_port
from tests.services.forked_federation import ForkedFederation
from tests.services.studies import SmallStudy, operator, run_through, small_study

SECONDS = 30.0
TRIES = 100


@dataclass(frozen=True)
class Holder:
    """A certificate with its key, as files, and the authority's."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Released:
    """A federation whose study is complete, with one bundle of each tier."""

    federation: LocalFederation
    study: SmallStudy
    downloads: int  # port
    t2: values.ReleasedBundle
    t3: values.ReleasedBundle
    fingerprint: str

    @property
    def authority(self) -> Path:
        return self.federation.aggregator_folder / "state" / "pki" / "ca.pem"

    def site(self, name: str) -> Holder:
        """A site that trained."""
        return Holder(self.federation.site_folder(name) / "state" / "identity")

    def verify(self, path: Path, withdrawals: bytes = b"") -> VerifiedBundle:
        trusted = frozenset({self.fingerprint})
        known = read_withdrawals(withdrawals, trusted) if withdrawals else None
        return verify_bundle(path, Trust(trusted, known), time.time_ns() // 1_000_000)

    def enrol(self, name: str, tier: int) -> Holder:
        """A clinic that uses bundles and never trains."""
        with operator(self.federation) as client:
            token = client.invite(name, tier, "south").token
        pem = (self.federation.aggregator_folder / "state" / "pki" / "joining.pem").read_bytes()
        ca, certificate, joining_key = (b"-----BEGIN" + part for part in pem.split(b"-----BEGIN")[1:])
        key = new_key()
        request = values.EnrolRequest(site=name, token=token, csr_pem=make_csr(key, Identity("site", name)))
        with self._client(ca, joining_key, certificate) as joining:
            response = joining.ask(request, values.EnrolResponse)
        holder = Holder(self.federation.directory / "clinics" / name)
        holder.folder.mkdir(parents=True)
        holder.certificate.write_bytes(response.certificate_pem)
        holder.authority.write_bytes(response.ca_pem)
        holder.key.write_bytes(key_pem(key))
        return holder

    def bundles(self, holder: Holder) -> ContractClient:
        """Calls over gRPC."""
        pems = (holder.authority.read_bytes(), holder.key.read_bytes(), holder.certificate.read_bytes())
        return self._client(*pems)

    @contextmanager
    def https(self, holder: Holder | None = None) -> Iterator[http.client.HTTPSConnection]:
        context = ssl.create_default_context(cafile=str(self.authority))
        if holder is not None:
            context.load_cert_chain(holder.certificate, holder.key)
        connection = http.client.HTTPSConnection(
            "localhost", self.downloads, timeout=SECONDS, context=context
        )
        with closing(connection):
            yield connection

    def until_spent(self, path: str) -> Answer:
        """The answer once the aggregator has noted that the last byte arrived."""
        for _ in range(TRIES):
            with self.https() as connection:
                answer = ask(connection, path)
            if answer.status != 200:
                return answer
            try:
                self.federation.process("aggregator").wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"the aggregator ended: {self.federation.tail()}")
        raise AssertionError("the link was not spent")

    def _client(self, authority: bytes, key: bytes, certificate: bytes) -> ContractClient:
        credentials = Credentials(certificate, key, authority)
        return ContractClient(Route(f"localhost:{self.federation.port}"), credentials)


def ask(connection: http.client.HTTPSConnection, path: str, method: str = "GET", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    response = connection.getresponse()
    return Answer(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})


def listed(client: ContractClient) -> dict[str, values.Bundle]:
    return {
        one.name: one for one in client.ask(values.ListBundlesRequest(), values.ListBundlesResponse).bundles
    }


def fetch(client: ContractClient, name: str, version: int = 1, offset: int = 0) -> Iterator[bytes]:
    return map(bytes, client.chunks(values.FetchBundleRequest(name, version, offset)))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Released]:
    folder, port = tmp_path_factory.mktemp("release"), free_port()
    study = small_study(folder, sites={"a": 160, "b": 200}, rounds=2)
    downloads = f'[downloads]\nlisten = "127.0.0.1:{port}"\n'
    with ForkedFederation(folder / "federation", aggregator_toml=downloads) as federation:
        assert run_through(federation, study).phase == "complete"
        for site in study.sites:
            federation.kill(site.name)
        with operator(federation) as client:
            t2, t3 = client.release(study.name), client.release(study.name, tier=3)
        assert t2.bundle is not None
        assert t3.bundle is not None
        yield Released(federation, study, port, t2.bundle, t3.bundle, t2.key_fingerprint)


def test_the_commands_release_show_and_download_what_the_federation_learned(
    released: Released, tmp_path: Path
) -> None:
    command = released.federation.aggregator
    again = json.loads(command("bundle", "release", "toy", "--json"))
    assert (again["made"], again["bundle"]["sha256"]) == (False, released.t2.sha256)
    assert released.fingerprint in command("bundle", "list")
    assert json.loads(command("bundle", "key", "--json")) == {"key_fingerprint": released.fingerprint}
    assert "A toy study" in command("bundle", "show", "toy-t2")
    done = json.loads(command("bundle", "download", "toy-t2-1", "--out", str(tmp_path), "--json"))
    bundle = released.verify(tmp_path / "toy-t2-1.fedmap")
    assert bundle.sha256 == done["sha256"] == released.t2.sha256
    assert len(bundle.steps) == 9

    plan, lineage = load_plan(released.study.plan), bundle.manifest.lineage
    assert (lineage.round, lineage.sites, lineage.accepted_updates) == (2, 2, 4)
    blobs = BlobStore(released.federation.aggregator_folder / "state" / "blobs")
    expected = decode_prior(model_of(plan).network, plan.prior, blobs.path(lineage.prior_digest))
    prior, shared = load_prior(bundle), load_shared(bundle)
    assert torch.equal(prior.mu, expected.prior.mu)
    assert torch.equal(prior.psi, expected.prior.psi)
    assert torch.equal(shared.scaler.mean, expected.scaler.mean)
    assert bundle.manifest.inputs == ("a", "b", "c")
    assert bundle.manifest.data is not None
    assert any(tier.estimates for tier in bundle.manifest.performance)


def test_a_download_over_grpc_goes_on_from_where_it_broke(released: Released, tmp_path: Path) -> None:
    with released.bundles(released.site("a")) as calls:
        found = listed(calls)
        assert (found["toy-t2"].sha256, found["toy-t3"].size) == (released.t2.sha256, released.t3.size)
        broken = next(fetch(calls, "toy-t2"))[:1000]
    with released.bundles(released.site("a")) as calls:
        whole = broken + b"".join(fetch(calls, "toy-t2", offset=len(broken)))
        assert list(fetch(calls, "toy-t2", offset=len(whole))) == []
        with pytest.raises(StateError, match="past the end"):
            list(fetch(calls, "toy-t2", offset=len(whole) + 1))
    assert sha256_hex(whole) == released.t2.sha256
    (tmp_path / "toy-t2-1.fedmap").write_bytes(whole)
    assert released.verify(tmp_path / "toy-t2-1.fedmap").manifest.tier == 2


def test_a_download_over_https_with_a_site_certificate_is_resumed_by_range_and_etag(
    released: Released,
) -> None:
    path, size = f"/bundles/{released.t2.file_name}", released.t2.size
    with released.https(released.site("b")) as connection:
        head = ask(connection, path, "HEAD")
        etag = head.headers["etag"]
        assert (head.status, head.headers["content-length"], head.body) == (200, str(size), b"")
        assert etag == f'"{released.t2.sha256}"'
        first = ask(connection, path, Range="bytes=0-999")
        assert (first.status, len(first.body)) == (206, 1000)
        rest = ask(connection, path, Range="bytes=1000-", If_Range=etag)
        assert rest.headers["content-range"] == f"bytes 1000-{size - 1}/{size}"
        assert sha256_hex(first.body + rest.body) == released.t2.sha256
        changed = ask(connection, path, Range="bytes=1000-", If_Range='"another"')
        assert (changed.status, sha256_hex(changed.body)) == (200, released.t2.sha256)
        assert ask(connection, path, Range=f"bytes={size}-").status == 416
        page = ask(connection, "/", Accept="text/html")
        assert page.status == 200
        assert b"A toy study" in page.body
        assert b"toy-t3-1.fedmap" in page.body


def test_without_a_certificate_or_a_link_there_is_nothing_to_see(released: Released) -> None:
    with released.https() as connection:
        assert ask(connection, "/").status == 403
        refused = ask(connection, f"/bundles/{released.t3.file_name}", Accept="application/json")
        assert (refused.status, json.loads(refused.body)["code"]) == (403, "not_allowed")
        assert ask(connection, "/d/guessed").status == 404
        assert ask(connection, "/healthz").status == 200


def test_a_link_gives_one_bundle_once_and_lets_a_broken_download_be_resumed(released: Released) -> None:
    made = json.loads(released.federation.aggregator("bundle", "link", "toy-t3-1", "--hours", "1", "--json"))
    base = f"https://localhost:{released.downloads}"
    assert made["url"].startswith(f"{base}/d/")
    path = made["url"].removeprefix(base)
    file = f"{path}/{released.t3.file_name}"
    with released.https() as connection:
        assert b"A toy study" in ask(connection, path, Accept="text/html").body
        assert ask(connection, f"{path}/{released.t2.file_name}").status == 404
        first = ask(connection, file, Range="bytes=0-999")
        assert (first.status, first.headers["cache-control"]) == (206, "no-store")
        etag = first.headers["etag"]
    with released.https() as connection:
        rest = ask(connection, file, Range="bytes=1000-", If_Range=etag)
    assert sha256_hex(first.body + rest.body) == released.t3.sha256
    assert released.until_spent(path).status == 410
    with released.https() as connection:
        again = ask(connection, file, Accept="application/json")
    assert (again.status, json.loads(again.body)["code"]) == (410, "state")
    assert made["url"].rpartition("/")[2] not in released.federation.log_of("aggregator").read_text()


def test_a_t3_clinic_gets_no_prior_and_a_revoked_one_gets_nothing(released: Released) -> None:
    clinic = released.enrol("clinic", tier=3)
    with released.bundles(clinic) as calls:
        assert {one.tier for one in listed(calls).values()} == {3}
        assert sha256_hex(b"".join(fetch(calls, "toy-t3"))) == released.t3.sha256
    with pytest.raises(NotFoundError), released.bundles(clinic) as calls:
        list(fetch(calls, "toy-t2"))
    with released.https(clinic) as connection:
        assert ask(connection, f"/bundles/{released.t2.file_name}").status == 404
        taken = ask(connection, f"/bundles/{released.t3.file_name}")
        assert sha256_hex(taken.body) == released.t3.sha256
        with operator(released.federation) as client:
            client.revoke("clinic", "closed")
        refused = ask(connection, f"/bundles/{released.t3.file_name}", Accept="application/json")
        assert refused.status == 403
        assert "revoked" in json.loads(refused.body)["message"]
    with pytest.raises(NotAllowedError, match="revoked"), released.bundles(clinic) as calls:
        list(fetch(calls, "toy-t3"))


def test_a_withdrawn_bundle_is_refused_everywhere_also_where_it_lies_already(
    released: Released, tmp_path: Path
) -> None:
    command, site = released.federation.aggregator, released.site("b")
    command("bundle", "release", "toy", "--tier", "3", "--expires", "2030-12-31")
    with released.bundles(site) as calls:
        (tmp_path / "kept.fedmap").write_bytes(b"".join(fetch(calls, "toy-t3", version=2)))
    assert released.verify(tmp_path / "kept.fedmap").manifest.version == 2
    done = json.loads(command("bundle", "withdraw", "toy-t3-2", "--reason", "wrong unit", "--json"))
    assert done["bundle"]["withdrawn"] == "wrong unit"
    with pytest.raises(StateError, match="wrong unit"), released.bundles(site) as calls:
        list(fetch(calls, "toy-t3", version=2))
    with released.bundles(site) as calls:
        signed = calls.ask(values.GetWithdrawalsRequest(), values.GetWithdrawalsResponse).signed_list
    with released.https(site) as connection:
        assert ask(connection, "/bundles/toy-t3-2.fedmap").status == 410
        assert ask(connection, "/withdrawn.json").body == signed
    command("bundle", "withdrawals", "--out", str(tmp_path / "withdrawn.json"))
    assert (tmp_path / "withdrawn.json").read_bytes() == signed
    with pytest.raises(FedmapError, match="step 6"):
        released.verify(tmp_path / "kept.fedmap", signed)
