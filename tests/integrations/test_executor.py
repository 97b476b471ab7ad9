"""The executor ends when it is told to, also while nobody answers it."""

from __future__ import annotations

import socket
import threading

from flwr.clientapp import ClientApp

from fedmap_flower.processes.executor import InstalledAppExecutor


def test_an_executor_whose_supernode_has_died_stops_when_it_is_told_to() -> None:
    """Flower's own client tries for ever: a hospital whose key is refused would wait and never hear why."""
    with socket.create_server(("127.0.0.1", 0)) as supernode:
        executor = InstalledAppExecutor(ClientApp(), f"127.0.0.1:{supernode.getsockname()[1]}")
        running = threading.Thread(target=executor.run, daemon=True)
        running.start()
        asking, _ = supernode.accept()
        executor.stop()
    asking.close()  # the call in hand fails, and nobody listens any more
    running.join(timeout=60)
    assert not running.is_alive()
