"""Two ways to run the sites' half of a round, with the same result.

`loop` fits one site after another, and is the services' own (`fedmap.study.engine`). `vectorised` fits many
sites at once in batched tensor operations, blocks of sites of similar size side by side on the machine's
cores.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch

from fedmap.algorithm.fit.fitting import fit_sites
from fedmap.algorithm.fit.rule import LocalRule
from fedmap.algorithm.fit.values import FailedFit, LocalFit, Model, SiteTask
from fedmap.algorithm.prior.values import Prior
from fedmap.algorithm.settings import FedmapSettings
from fedmap.study.engine import Engine, Fits, LoopEngine

EngineName = Literal["loop", "vectorised"]
BLOCK_PARAMETERS = 128 * 4096  # of the sites in one block: large blocks share the cost of each operation
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h


class VectorisedEngine:
    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or os.cpu_count() or 1

    def fit(
        self,
        model: Model,
        settings: FedmapSettings,
        prior: Prior,
        tasks: Sequence[SiteTask],
        penalised: bool = True,
        rule: LocalRule | None = None,
    ) -> Fits:
        if not tasks:
            return []
        by_size = np.argsort([-len(task.train) for task in tasks], kind="stable")
        blocks = self._blocks(by_size.tolist(), model.network.spec.size)

        def fit_block(block: list[int]) -> Fits:
            return fit_sites(
                model, settings, prior, [tasks[i] for i in block], penalised=penalised, rule=rule
            )

        placed: dict[int, LocalFit | FailedFit] = {}
        with ThreadPoolExecutor(self._workers) as pool:
            for block, fits in zip(blocks, pool.map(fit_block, blocks), strict=True):
                placed.update(zip(block, fits, strict=True))
        return [placed[i] for i in range(len(tasks))]

    def _blocks(self, order: list[int], parameters: int) -> list[list[int]]:
        """Sites of similar size together, largest first, as many blocks as keep every core busy."""
        most = max(1, BLOCK_PARAMETERS // max(1, parameters))
        count = -(-len(order) // most)
        count = max(min(self._workers, len(order)), -(-count // self._workers) * self._workers)
        return [part.tolist() for part in np.array_split(order, min(count, len(order)))]


def keep_freed_memory() -> None:
    """Ask glibc not to hand freed blocks back: training steps free and take megabytes all the time, and
    faulting fresh pages in costs ten times the arithmetic done on them. Other C libraries are left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, size in ((M_MMAP_THRESHOLD, 256 << 20), (M_TRIM_THRESHOLD, 1 << 30)):
            mallopt(ctypes.c_int(option), ctypes.c_int(size))


def make_engine(name: EngineName) -> Engine:
    """One torch thread: results do not depend on the number of cores, and blocks use the cores instead."""
    torch.set_num_threads(1)
    keep_freed_memory()
    return LoopEngine() if name == "loop" else VectorisedEngine()
