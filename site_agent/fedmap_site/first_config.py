"""The first configuration and policy of a new site, written by `enrol` where there is none yet.

Short, careful and complete enough to enrol; the patients' file is for the site to name.
"""

from __future__ import annotations

from pathlib import Path

from fedmap.files.durable import make_folder, write_durably
from fedmap.process.settings import parse_config
from fedmap_site.config import SiteConfig

CONFIG = """\
# fedmap-site. Relative paths start at the folder of this file; config.full.toml has every option.

[site]
name = "{site}"
state = "state"

[aggregator]
address = "{address}"

[data]
# The patients' file: read, never written, never sent.
file = ""

[policy]
file = "policy.toml"
"""
POLICY = """\
# What this site allows. Of two floors, the study's and this one, the larger holds.

# review: a named person releases every answer. automatic: it leaves when it has passed the checks.
egress = "review"
min_rows = 50
min_events = 5
min_cell = 10
"""


def write_first_config(path: Path, site: str, address: str) -> tuple[Path, ...]:
    """Write the files that are missing; which those were. A faulty name or address is a ConfigError."""
    text = CONFIG.format(site=site.replace('"', ""), address=address.replace('"', ""))
    config = parse_config(text, str(path), path.absolute().parent, SiteConfig)
    make_folder(path.absolute().parent)
    written = [path]
    if not config.policy.file.exists():
        write_durably(config.policy.file, POLICY.encode(), mode=0o644)
        written.append(config.policy.file)
    write_durably(path, text.encode(), mode=0o644)
    return tuple(written)
