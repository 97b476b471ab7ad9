"""The centre's half."""

from fedmap_flower.centre.server import make_server_app

app = make_server_app()
