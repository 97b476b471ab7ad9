"""The sample files of deploy/ work; the full ones have every option, with its default and a line about it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel

from fedmap.process.settings import read_config
from fedmap_aggregator.config import AggregatorConfig
from fedmap_site.config import DataSection, SiteConfig
from fedmap_site.policy import SitePolicy

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES: dict[str, type[BaseModel]] = {"aggregator": AggregatorConfig, "site_agent": SiteConfig}
FULL: dict[Path, type[BaseModel]] = {
    DEPLOY / "aggregator" / "config.full.toml": AggregatorConfig,
    DEPLOY / "site_agent" / "config.full.toml": SiteConfig,
    DEPLOY / "site_agent" / "policy.toml": SitePolicy,
}


@pytest.mark.parametrize("name", SERVICES)
def test_the_short_sample_works_and_the_full_one_shows_the_defaults(name: str) -> None:
    short, full = (
        read_config(DEPLOY / name / f"config{kind}.toml", SERVICES[name]) for kind in ("", ".full")
    )
    if isinstance(full, SiteConfig):
        full = full.model_copy(update={"data": DataSection()})
    if isinstance(short, SiteConfig):
        assert short.policy.file == DEPLOY / name / "policy.toml"
        short = short.model_copy(update={"data": DataSection()})
    assert full == short
    lines = (DEPLOY / name / "config.toml").read_text().splitlines()
    assert name != "aggregator" or len([line for line in lines if line and line[0] != "#"]) <= 5


def test_the_sample_policy_shows_the_defaults() -> None:
    assert read_config(DEPLOY / "site_agent" / "policy.toml", SitePolicy) == SitePolicy()


@pytest.mark.parametrize("path", FULL, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_full_sample_names_and_explains_every_option_and_no_other(path: Path) -> None:
    assert sorted(keys_of(tomllib.loads(path.read_text()))) == sorted(options_of(FULL[path]))
    for above, line in pairwise(path.read_text().splitlines()):
        if "=" in line and not line.startswith("#"):
            assert above.startswith("#"), line


def keys_of(raw: dict[str, object], prefix: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if isinstance(value, dict) and f"{prefix}{key}" != "data.files":
            yield from keys_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def options_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from options_of(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
