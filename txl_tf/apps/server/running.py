"""Runs the server until it is told to end."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from types import FrameType

import grpc
import uvicorn

from txl_tf.apps.server.grpc_service import GrpcService
from txl_tf.apps.server.http_app import HttpApp
from txl_tf.apps.server.served_folder import ServedFolder
from txl_tf.apps.server.settings import ServerSettings
from txl_tf.apps.server.work_queue import WorkQueue
from txl_tf.errors import UserError, explain

_TICK_SECONDS = 0.1  # between two looks for a signal
_SWEEP_SECONDS = 1.0  # between two looks for idle sessions
_MORE_GRACE_SECONDS = 5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_server(folder: ServedFolder, settings: ServerSettings) -> None:
    """Serves a model over HTTP and gRPC until SIGTERM or SIGINT, and prints the addresses.

    Requests in progress are finished, for as long as `grace_seconds` allow.

    Raises:
        UserError: If a port cannot be listened at.
        KeyboardInterrupt: If it was SIGINT.
    """
    asyncio.run(_serve(folder, settings))


async def _serve(folder: ServedFolder, settings: ServerSettings) -> None:
    queue = WorkQueue(settings.n_threads, settings.n_waiting)
    app = HttpApp(folder, queue, settings, time.monotonic)
    print(f"Signatures: {', '.join(sorted(folder.functions))}")
    if app.engine is not None:
        size = app.engine.session_bytes
        print(
            f"Sessions: at most {settings.max_sessions}, {size:,} bytes each, "
            f"{settings.max_sessions * size / 2**20:,.1f} MiB together"
        )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        listener = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        number = error.errno or 0
        # The text of the error repeats the address. Errors of name resolution are negative.
        reason = os.strerror(number) if number > 0 else explain(error)
        raise UserError(f"{host}:{settings.port} cannot be listened at: {reason}") from error
    with listener:
        print(f"HTTP at http://{host}:{listener.getsockname()[1]}/v1/models/{folder.name}")
        grpc_server = None
        if settings.grpc_port is not None:
            grpc_server = GrpcService(folder, queue, settings).make_server()
            try:
                port = grpc_server.add_insecure_port(f"{host}:{settings.grpc_port}")
            except RuntimeError as error:
                raise UserError(f"port {settings.grpc_port} cannot be listened at") from error
            await grpc_server.start()
            print(f"gRPC at {host}:{port}, model {folder.name}")
        server = _make_http_server(app, settings)
        with _end_at_signals(server) as seen:
            sweeps = asyncio.create_task(_drop_idle(app))
            await asyncio.gather(
                server.serve([listener]), _end(server, app, grpc_server, settings.grace_seconds)
            )
            sweeps.cancel()
    queue.close()
    if signal.SIGINT in seen:
        raise KeyboardInterrupt


def _make_http_server(app: HttpApp, settings: ServerSettings) -> uvicorn.Server:
    config = uvicorn.Config(
        app.make_asgi(),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=round(settings.client_seconds),
        # Streams end by themselves before that.
        timeout_graceful_shutdown=round(settings.grace_seconds) + _MORE_GRACE_SECONDS,
    )
    return uvicorn.Server(config)


@contextlib.contextmanager
def _end_at_signals(server: uvicorn.Server) -> Iterator[list[int]]:
    """Ends the server at SIGTERM and SIGINT; yields those that came.

    While the server runs, it handles signals itself. In the end it sends itself again what came,
    which would kill the process: these handlers take it.
    """
    seen: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        seen.append(number)
        server.should_exit = True

    previous = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield seen
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


async def _end(
    server: uvicorn.Server, app: HttpApp, grpc_server: grpc.aio.Server | None, grace: float
) -> None:
    """Waits until the server is told to end, and ends what it does not know of."""
    while not server.should_exit:
        await asyncio.sleep(_TICK_SECONDS)
    app.ends_at = time.monotonic() + grace
    if grpc_server is not None:
        await grpc_server.stop(grace)


async def _drop_idle(app: HttpApp) -> None:
    """Forgets idle sessions also while there are no requests."""
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        app.sessions.drop_idle()
