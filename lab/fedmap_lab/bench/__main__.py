"""`python -m fedmap_lab.bench`: the ratios of docs/benchmarks.md, measured now, on this machine."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from fedmap_lab.bench.engines import measure_engines
from fedmap_lab.bench.prior_step import measure_prior_step


def main() -> None:
    console = Console()
    table = Table(title="FedMAP benchmarks: ratios within this run", title_justify="left")
    for column in ("what", "ratio", "target"):
        table.add_column(column)
    console.print("engines: CPRD network, 185 sites …")
    engines = measure_engines()
    table.add_row("vectorised against loop, site-steps per second", f"{engines.ratio:.1f} ×", "≥ 20 ×")
    table.add_row(
        "vectorised against loop with closed-form gradients", f"{engines.ratio_to_closed_form:.1f} ×", ""
    )
    console.print("prior step: eICU network …")
    step = measure_prior_step()
    closed, sketched = step.closed_form / step.autograd, step.sketched / step.none
    table.add_row("closed-form prior step against autograd", f"{closed:.2f} ×", "≤ 0.5 ×")
    table.add_row("step with sketch against step without a prior", f"{sketched:.2f} ×", "≤ 1.5 ×")
    console.print(table)


if __name__ == "__main__":
    main()
