"""A hospital's half: everything it needs is in its own node configuration."""

from fedmap_flower.node.client import make_client_app
from fedmap_flower.node.node import hospital_node

app = make_client_app(hospital_node)
