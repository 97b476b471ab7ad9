"""A simulated site: one file of a cohort directory."""

from fedmap_flower.node.client import make_client_app
from fedmap_flower.node.node import simulated_node

app = make_client_app(simulated_node)
