"""A hospital's half: everything it needs is in its own node configuration."""

from integrations.flower.client import make_client_app
from integrations.flower.node import hospital_node

app = make_client_app(hospital_node)
