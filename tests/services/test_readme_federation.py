"""The README's federation, command by command as written: a centre and two hospitals, each in its own folder.

Only what a reader has to fill in is filled in: address, token, fingerprint, digest, and the patients' file.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedmap_lab.local.federation import free_port
from fedmap_site.exit.item import OutboxItem, read_item
from tests.forked_programs import ForkedProgram, run_forked
from tests.services.studies import small_study

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "fedmap.example.org:8443"
FIRST, SECOND = "hospital-a", "hospital-b"


def readme_commands(program: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


def run(folder: Path, command: str, *more: str) -> str:
    program, *arguments = shlex.split(command)
    done = run_forked(program, [*arguments, *more], os.environ, folder)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def running(folder: Path, command: str) -> Iterator[ForkedProgram]:
    program, *arguments = shlex.split(command)
    log = folder / "log"
    process = ForkedProgram(program, arguments, os.environ, log, log, folder)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def wait_for_port(process: ForkedProgram, port: int) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError("the aggregator does not listen")


def prepare_hospital(folder: Path, site: str, data: Path, filled: dict[str, str], joining: Path) -> None:
    """All of the hospital's commands but the last, which keeps running."""
    enrol, *checks, approve, rehearse, _ = readme_commands("fedmap-site")
    shutil.copy(joining, folder / "joining.pem")
    for name, value in filled.items():
        enrol = enrol.replace(name, value)
        approve = approve.replace(name, value)
    run(folder, enrol.replace(FIRST, site))
    config = folder / "site.toml"
    config.write_text(config.read_text().replace('file = ""', f'file = "{data}"'))
    policy = folder / "policy.toml"
    policy.write_text(policy.read_text().replace('egress = "review"', 'egress = "automatic"'))
    for check in checks:
        run(folder, check)
    run(folder, approve)
    if site == FIRST:
        assert "Nothing was sent" in run(folder, rehearse)


def shape_of(item: OutboxItem) -> tuple[object, ...]:
    """Fields by name, tensors by name, type and shape, checks; how many entries a list has may differ."""
    fields = {re.sub(r"\[\d+\]", "[]", field.name) for field in item.manifest.fields}
    tensors = [(tensor.name, tensor.dtype, tensor.shape) for tensor in item.manifest.tensors]
    return fields, tensors, [check.name for check in item.manifest.checks]


def check_what_left(state: Path) -> None:
    """The dry run before the study showed the very fields, tensors and checks that left then."""
    rehearsed = {path.name: read_item(path) for path in (state / "studies" / "toy" / "dry-run").glob("toy.*")}
    assert len(rehearsed) == 5
    left = {path.name: read_item(path) for path in (state / "outbox").glob("toy.*")}
    assert {"toy.statistics.1", "toy.round-1.1", "toy.rule.1", "toy.evaluate.1"} <= set(left)
    for name in set(left) & set(rehearsed):
        assert left[name].status.state == "sent"
        assert shape_of(left[name]) == shape_of(rehearsed[name]), name


def test_the_readmes_federation_runs_as_written(tmp_path: Path) -> None:
    study = small_study(tmp_path / "study", sites={FIRST: 120, SECOND: 110})
    folders = {name: tmp_path / name for name in ("centre", FIRST, SECOND)}
    for folder in folders.values():
        folder.mkdir()
        shutil.copy(study.plan, folder / "plan.toml")
    centre, port = folders["centre"], free_port()
    init, serve, invite, create, start, watch, release, link = readme_commands("fedmap-aggregator")
    address = f"localhost:{port}"
    run(centre, init.replace(EXAMPLE, address))
    with (centre / "aggregator.toml").open("a") as config:
        config.write(f'\n[downloads]\nlisten = "127.0.0.1:{free_port()}"\n')
    with ExitStack() as processes:
        wait_for_port(processes.enter_context(running(centre, serve)), port)
        tokens = {
            site: json.loads(run(centre, invite.replace(FIRST, site), "--json")) for site in (FIRST, SECOND)
        }
        digest = json.loads(run(centre, create, "--json"))["terms_digest"]
        joining = next(centre.rglob("joining.pem"))
        for site in study.sites:
            told = tokens[site.name]
            filled = {EXAMPLE: address, "DIGEST": digest, "TOKEN": told["token"]}
            filled["FINGERPRINT"] = told["ca_fingerprint"]
            prepare_hospital(folders[site.name], site.name, site.data, filled, joining)
            processes.enter_context(running(folders[site.name], readme_commands("fedmap-site")[-1]))
        run(centre, start)
        run(centre, watch)
        status = json.loads(run(centre, "fedmap-aggregator status toy", "--json"))
        assert [seen["phase"] for seen in status["studies"]] == ["complete"]
        check_what_left(folders[FIRST] / "state")
        run(centre, release)
        assert "https://localhost:" in run(centre, link)
        run(folders[FIRST], "fedmap-site bundle fetch toy-t2 --install")
        assert "toy-t2" in run(folders[FIRST], "fedmap-site bundle list")
