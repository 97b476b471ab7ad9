"""One small file for each method, all behind the same interface (`method.Method`)."""

from __future__ import annotations

from lab.methods.fedavg import FedAvg
from lab.methods.fedmap import FedMap
from lab.methods.individual import Individual
from lab.methods.method import Method

METHODS: dict[str, type[Method]] = {"fedmap": FedMap, "fedavg": FedAvg, "individual": Individual}
