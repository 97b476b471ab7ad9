"""The agent's configuration: what is refused and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmap.errors import ConfigError
from fedmap.process.addresses import host_of, port_of
from fedmap.process.settings import parse_config, read_config
from fedmap_site.config import SiteConfig, write_first_config
from fedmap_site.policy import read_policy

SHORT = '[site]\nname = "a"\nstate = "state"\n[aggregator]\naddress = "localhost:8443"\n'


def parsed(text: str) -> SiteConfig:
    return parse_config(text, "site.toml", Path("/etc/fedmap"), SiteConfig)


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        parsed(text)
    return raised.value.problems


def test_the_short_form_is_enough_and_paths_start_at_the_file() -> None:
    config = parsed(SHORT)
    assert config.site.state == Path("/etc/fedmap/state")
    assert config.policy.file == Path("/etc/fedmap/policy.toml")
    assert config.aggregator.ca_bundle is None
    assert config.data.path_of("any") is None


def test_a_study_may_have_a_file_of_its_own() -> None:
    config = parsed(SHORT + '[data]\nfile = "all.csv"\nfiles = { heart = "heart.csv" }\n')
    assert config.data.path_of("heart") == Path("/etc/fedmap/heart.csv")
    assert config.data.path_of("other") == Path("/etc/fedmap/all.csv")


def test_all_problems_are_reported_at_once_in_plain_words() -> None:
    found = problems_of(
        '[site]\nname = "My Hospital"\nstat = "x"\n'
        '[aggregator]\naddress = "localhost"\nproxy = "squid:3128"\n'
        '[agent]\npoll_seconds = 600\n[metrics]\nlisten = "nine"\n'
    )
    text = "\n".join(found)
    for part in ("site.name", "site.state", "did you mean", "aggregator.address", "host:port"):
        assert part in text
    for part in ("aggregator.proxy", "agent.poll_seconds", "at most 60", "metrics.listen"):
        assert part in text


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:0", "localhost:99999", "a b:1", "http://a:1", ":1"]
)
def test_an_address_that_cannot_be_dialled_is_refused(address: str) -> None:
    (problem,) = problems_of(SHORT.replace("localhost:8443", address))
    assert "host:port" in problem


def test_a_password_in_the_proxy_is_refused_and_not_quoted() -> None:
    (problem,) = problems_of(SHORT + 'proxy = "http://user:secret@proxy:3128"\n')
    assert "proxy_file" in problem
    assert "secret" not in problem


def test_a_proxy_and_a_proxy_file_together_are_refused() -> None:
    (problem,) = problems_of(SHORT + 'proxy = "http://proxy:3128"\nproxy_file = "proxy.txt"\n')
    assert "proxy_file" in problem


def test_an_ipv6_address_is_taken_apart() -> None:
    assert (host_of("[::1]:8443"), port_of("[::1]:8443")) == ("::1", 8443)


def test_the_first_configuration_that_enrol_writes_is_in_order(tmp_path: Path) -> None:
    written = write_first_config(tmp_path / "site.toml", "a", "localhost:8443")
    assert [path.name for path in written] == ["site.toml", "policy.toml"]
    config = read_config(tmp_path / "site.toml", SiteConfig)
    assert config.data.path_of("any") is None
    assert read_policy(config.policy.file).egress == "review"
    with pytest.raises(ConfigError):
        write_first_config(tmp_path / "other.toml", "Not A Name", "localhost:8443")
    assert not (tmp_path / "other.toml").exists()
