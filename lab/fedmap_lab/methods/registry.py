"""Every method with its default hyperparameters."""

from __future__ import annotations

from fedmap_lab.methods.ditto import Ditto
from fedmap_lab.methods.feddyn import FedDyn
from fedmap_lab.methods.fedmap import ABLATIONS, FedMap
from fedmap_lab.methods.fedprox import FedProx
from fedmap_lab.methods.individual import Individual
from fedmap_lab.methods.method import Method
from fedmap_lab.methods.pfedbayes import PFedBayes
from fedmap_lab.methods.pfedfda import PFedFda
from fedmap_lab.methods.pfedgp import PFedGp
from fedmap_lab.methods.pfedme import PFedMe
from fedmap_lab.methods.pooled import Pooled
from fedmap_lab.methods.qfedavg import QFedAvg
from fedmap_lab.methods.scaffold import Scaffold
from fedmap_lab.methods.scheme import FedAvg

METHODS: dict[str, Method] = {
    "individual": Individual(),
    "pooled": Pooled(),
    "fedavg": FedAvg(),
    "fedprox": FedProx(),
    "scaffold": Scaffold(),
    "qfedavg": QFedAvg(),
    "feddyn": FedDyn(),
    "ditto": Ditto(),
    "pfedme": PFedMe(),
    "pfedbayes": PFedBayes(),
    "pfedgp": PFedGp(),
    "pfedfda": PFedFda(),
    "fedmap": FedMap(),
    **ABLATIONS,
}
"""By the name that commands and tables use."""
