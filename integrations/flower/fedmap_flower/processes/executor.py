"""Runs a hospital's tasks by the installed FedMAP alone: the code that Flower delivers is never executed.

Flower sends every SuperNode the app's code, and its own executor installs and runs whatever came. This one
takes its place (`flower-supernode --isolation process`): it takes the tasks from the SuperNode beside it,
does them with the client app of this very installation, and leaves the delivered bundle unopened. One
process for all tasks, so the libraries are loaded once.

It speaks Flower's runtime API through Flower's own functions. They are not promised from version to
version, which is why the extra names one version of Flower.
"""

from __future__ import annotations

import threading
import time

import httpx
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import RetryInvoker, make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedmap.process.log import get_logger

_PAUSE_SECONDS = 0.2
_MOST_PAUSES = 300  # a minute for a message that was announced
_COMPONENT = "flwr-clientapp"


class _PatientClient(RuntimeHttpClient):
    """A SuperNode hands out a task a moment before it has stored the task's message."""

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        found = super().PullMessages(request)
        for _ in range(_MOST_PAUSES):
            if found.messages_list:
                break
            time.sleep(_PAUSE_SECONDS)
            found = super().PullMessages(request)
        return found


class InstalledAppExecutor:
    """Takes tasks from the SuperNode at `address`, a port of this machine, until it is told to stop."""

    def __init__(self, app: ClientApp, address: str) -> None:
        self._app = app
        self._address = address
        self._stopped = threading.Event()

    def stop(self) -> None:
        """After the task in hand."""
        self._stopped.set()

    def run(self) -> None:
        client = self._client(None)
        try:
            wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
            while not self._stopped.wait(_PAUSE_SECONDS):
                try:
                    found = client.AcquireTask(wanted)
                except httpx.HTTPError as error:  # it is starting, or ending: it will answer, or stop us
                    get_logger().warning("supernode_does_not_answer", exc_info=error)
                    continue
                if found.HasField("task") and found.token:
                    self._do(found.token)
        finally:
            client.close()

    def _do(self, token: str) -> None:
        """One task from its message to its reply. What the app cannot do it answers as a failure itself."""
        client = self._client(token)
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        try:
            message, context, _run, _unopened = pull_task_input(client)
            reply = self._app(message=message, context=context)
            push_message(client, reply, context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        except httpx.HTTPError as error:  # the run has ended, or the SuperNode has: the centre notes silence
            get_logger().error("task_not_delivered", exc_info=error)
        finally:
            if heartbeat.is_running:
                heartbeat.stop()
            client.close()

    def _client(self, token: str | None) -> RuntimeHttpClient:
        interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(_COMPONENT)]
        if token is not None:
            interceptors.append(RuntimeTokenHttpInterceptor(token))
        return _PatientClient.from_server_address(
            server_address=self._address,
            insecure=True,  # the loopback interface of one machine
            root_certificates=None,
            interceptors=interceptors,
            retry_invoker=self._retries(),
        )

    def _retries(self) -> RetryInvoker:
        """Flower's own, which tries for ever; ours ends when the executor is told to stop."""
        invoker = make_simple_http_retry_invoker()
        flowers = invoker.should_giveup

        def give_up(error: Exception) -> bool:
            return self._stopped.is_set() or (flowers is not None and flowers(error))

        def wait(seconds: float) -> None:
            self._stopped.wait(seconds)

        invoker.should_giveup, invoker.wait_function = give_up, wait
        return invoker
