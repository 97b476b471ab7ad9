"""A simulated site: one file of a cohort directory."""

from integrations.flower.client import make_client_app
from integrations.flower.node import simulated_node

app = make_client_app(simulated_node)
