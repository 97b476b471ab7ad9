"""Random streams named by what they are for, so that every engine and service draws the same numbers.

A stream depends on its name only, never on who drew before it: a site's shuffles are the same whether it
is trained first, last, alone in a container or in a batch with two hundred others.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """A 64-bit seed for one purpose, e.g. `derive_seed(7, "fit", round_number, site)`."""
    text = json.dumps([seed, *names])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def numpy_stream(seed: int) -> np.random.Generator:
    """SFC64: fast enough that dropout bits cost less than the layers they thin out."""
    return np.random.Generator(np.random.SFC64(seed))


def torch_stream(seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed % 2**63)
    return generator
