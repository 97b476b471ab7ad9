"""A hospital whose only way out is a proxy with a login, in a federation with certificates of its own PKI.

The proxy is tinyproxy. The agent's network holds the agent and the proxy, and nothing else.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmap.trust.pki import CertificateAuthority, Identity, key_pem, new_key
from fedmap_aggregator.identity.profile import OperatorProfile, profile_text
from tests.containers.centre import READY_WITHIN_SECONDS, Centre, running_centre
from tests.containers.engine import IMAGES, ROOT, Engine, wait_until

pytestmark = pytest.mark.containers

SITE, UID = "my-hospital", 12345
LOGIN = "hospital:right-password"
PROXY = """Port 3128
Listen 0.0.0.0
Timeout 600
MaxClients 50
LogLevel Connect
ConnectPort 8443
BasicAuth hospital right-password
FilterDefaultDeny Yes
Filter "/etc/proxy/filter"
"""
PKI = """
[pki]
server_certificate = "/etc/fedmap/server.pem"
server_key = "/etc/fedmap/server.key"
client_ca = "/etc/fedmap/ca.pem"
[metrics]
listen = "127.0.0.1:9464"
"""
DIRECT = """
import socket
try:
    socket.create_connection(("aggregator", 8443), timeout=5)
    print("reached")
except OSError:
    print("no way")
"""


@dataclass(frozen=True)
class Ward:
    """The hospital's side: one network, the proxy at its edge, the agent and its folders."""

    centre: Centre
    folder: Path

    @property
    def network(self) -> str:
        return f"{self.centre.prefix}-ward"

    @property
    def proxy(self) -> str:
        return f"{self.centre.prefix}-proxy"

    @property
    def agent(self) -> str:
        return f"{self.centre.prefix}-agent"

    @property
    def volume(self) -> str:
        return f"{self.centre.prefix}-site"

    def options(self, config: str = "config") -> list[str]:
        mounts = (
            f"{self.volume}:/var/lib/fedmap",
            f"{self.folder / config}:/etc/fedmap:ro",
            f"{self.folder / 'data'}:/data:ro",
        )
        mounted = [part for mount in mounts for part in ("--volume", mount)]
        return ["--network", self.network, *self.centre.engine.hardened, *mounted]

    def command(self, *arguments: str, config: str = "config", env: str = "FEDMAP_NOTHING=1") -> str:
        """What one command of the agent prints in a new container, whatever its end."""
        done = self.centre.engine.try_run(
            "run", "--rm", *self.options(config), "--env", env, IMAGES["site"], *arguments
        )
        return done.stdout + ("" if arguments[-1] == "--json" else done.stderr)

    def doctor(self, config: str = "config", env: str = "FEDMAP_NOTHING=1") -> dict[str, tuple[str, str]]:
        """check → verdict and message."""
        found = json.loads(self.command("doctor", "--json", config=config, env=env))
        return {one["name"]: (one["status"], one["finding"]) for one in found}

    def remove(self) -> None:
        engine = self.centre.engine
        for name in (self.agent, self.proxy):
            engine.try_run("rm", "--force", name)
        engine.try_run("network", "rm", "--force", self.network)
        engine.try_run("volume", "rm", "--force", self.volume)


def private(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Files in a folder that the container's user alone can read."""
    folder.mkdir(exist_ok=True)
    os.chown(folder, UID, UID)
    for name, content in files.items():
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(0o600)
        os.chown(path, UID, UID)


class OwnPki:
    """The certificates that a consortium's own authority issues."""

    def __init__(self) -> None:
        self._now = datetime.datetime.now(datetime.UTC)
        self._authority, _ = CertificateAuthority.create("the consortium", 30, self._now)

    @property
    def authority(self) -> bytes:
        return self._authority.certificate_pem

    def pair(self, identity: Identity, *hosts: str) -> tuple[bytes, bytes]:
        """Certificate and key."""
        key = new_key()
        return self._authority.issue(key.public_key(), identity, 20, self._now, hosts), key_pem(key)

    def profile(self) -> str:
        certificate, key = self.pair(Identity("operator", "admin"))
        texts = [text.decode() for text in (self.authority, certificate, key)]
        return profile_text(OperatorProfile("admin", "aggregator:8443", *texts))


def site_config(folder: Path, login: str, authority: bytes) -> None:
    """deploy/site_agent/config.container.toml with the lines for a proxy and for a PKI of the operator's."""
    text = (ROOT / "deploy" / "site_agent" / "config.container.toml").read_text()
    text = text.replace("aggregator.example.org", "aggregator")
    text = text.replace('# proxy = "http://proxy.example.org:3128"', 'proxy_file = "/etc/fedmap/proxy"')
    text = text.replace("# ca_bundle =", "ca_bundle =")
    policy = (ROOT / "deploy" / "site_agent" / "policy.toml").read_text()
    files = {"site.toml": text, "policy.toml": policy, "proxy": f"http://{login}@proxy:3128\n"}
    private(folder, {**files, "ca.pem": authority})


@pytest.fixture(scope="module")
def ward(engine: Engine, tools: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """A running agent behind the proxy; `config-…` folders beside its own have one fault each."""
    folder, pki = tmp_path_factory.mktemp("ward"), OwnPki()
    folder.chmod(0o755)
    server, server_key = pki.pair(Identity("aggregator"), "aggregator")
    files = {"server.pem": server, "server.key": server_key, "ca.pem": pki.authority}
    private(folder / "centre", {**files, "operator.toml": pki.profile()})
    with running_centre(engine, folder, PKI) as centre:
        site = Ward(centre, folder)
        centre.command("invite", SITE, "--tier", "1", "--profile", "/etc/fedmap/operator.toml")
        site_config(folder / "config", LOGIN, pki.authority)
        site_config(folder / "config-other-login", "hospital:wrong-password", pki.authority)
        site_config(folder / "config-other-authority", LOGIN, OwnPki().authority)
        certificate, key = pki.pair(Identity("site", SITE))
        private(folder / "config", {"site.pem": certificate, "site.key": key})
        private(folder / "data", {"patients.csv": "age,sex\n50,F\n"})
        private(folder / "proxy", {"proxy.conf": PROXY, "filter": "^aggregator$\n"})
        try:
            engine.run("network", "create", "--internal", site.network)
            engine.run("volume", "create", site.volume)
            engine.run(
                *("run", "--detach", "--name", site.proxy, *engine.hardened),
                *("--network", f"{site.network}:alias=proxy", "--network", centre.network),
                *("--volume", f"{folder / 'proxy'}:/etc/proxy:ro", "--entrypoint", "tinyproxy"),
                *(tools, "-d", "-c", "/etc/proxy/proxy.conf"),
            )
            own = ("--certificate", "/etc/fedmap/site.pem", "--key", "/etc/fedmap/site.key")
            assert f"{SITE} is enrolled" in site.command("enrol", *own)
            engine.run("run", "--detach", "--name", site.agent, *site.options(), IMAGES["site"])
            wait_until(
                lambda: engine.healthy(site.agent),
                READY_WITHIN_SECONDS,
                "healthy agent",
                lambda: engine.logs(site.agent) + engine.logs(site.proxy),
            )
            yield site
        finally:
            site.remove()


def test_the_agent_works_through_the_proxy_and_has_no_other_way(ward: Ward) -> None:
    engine = ward.centre.engine
    assert engine.run("exec", ward.agent, "python", "-c", DIRECT).stdout.strip() == "no way"
    asked = re.findall(r"Request .*?: (\S+ \S+) HTTP/", engine.logs(ward.proxy))
    assert set(asked) == {"CONNECT aggregator:8443"}


def test_doctor_walks_through_the_proxy_to_an_aggregator_of_another_pki(ward: Ward) -> None:
    found = ward.doctor()
    assert [name for name, (verdict, _) in found.items() if verdict == "fail"] == []
    assert found["proxy"] == ("ok", "lets connections to aggregator:8443 through")
    assert found["tls"][0] == found["aggregator"][0] == "ok"


def test_proxy_variables_of_the_environment_are_ignored(ward: Ward) -> None:
    assert ward.doctor(env="HTTPS_PROXY=http://nowhere.invalid:1")["proxy"][0] == "ok"


def test_a_wrong_login_at_the_proxy_is_named_with_the_file_to_mend(ward: Ward) -> None:
    verdict, message = ward.doctor("config-other-login")["proxy"]
    assert (verdict, message) == ("fail", "the proxy refuses the connection (HTTP 401)")  # tinyproxy's way
    assert "correct user and password in the file that proxy_file names" in ward.command(
        "doctor", config="config-other-login"
    )


def test_an_authority_that_did_not_sign_the_aggregator_is_named(ward: Ward) -> None:
    verdict, message = ward.doctor("config-other-authority")["tls"]
    assert verdict == "fail"
    assert "not from our authority; its issuer is CN=the consortium" in message
