"""The centre's half."""

from integrations.flower.server import make_server_app

app = make_server_app()
