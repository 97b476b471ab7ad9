"""One small file for each method, all behind the same interface (`method.Method`)."""

from __future__ import annotations

from lab.methods.ablations import ABLATIONS
from lab.methods.ditto import Ditto
from lab.methods.fedavg import FedAvg
from lab.methods.feddyn import FedDyn
from lab.methods.fedmap import FedMap
from lab.methods.fedprox import FedProx
from lab.methods.individual import Individual
from lab.methods.method import Method
from lab.methods.pfedbayes import PFedBayes
from lab.methods.pfedfda import PFedFda
from lab.methods.pfedgp import PFedGp
from lab.methods.pfedme import PFedMe
from lab.methods.pooled import Pooled
from lab.methods.qfedavg import QFedAvg
from lab.methods.scaffold import Scaffold

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
"""Every method with its default hyperparameters, by the name that commands and tables use."""
