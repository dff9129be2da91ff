"""The bounds of a server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, and its bounds.

    Args:
        host: The address to listen at.
        port: The port for HTTP; 0 for one that the system chooses.
        grpc_port: The port for gRPC; 0 likewise, `None` for no gRPC.
        n_threads: The number of threads that compute.
        n_waiting: The number of requests that may wait for them.
        max_bytes: The largest body of a request.
        max_length: The largest number of tokens that a request may generate.
        max_sessions: The largest number of sessions.
        idle_seconds: How long a session is kept after its last request.
        client_seconds: How long a client may take to send its body, or to take a part of an answer.
        grace_seconds: How long requests in progress may take after SIGTERM.
    """

    host: str = "127.0.0.1"
    port: int = 8501
    grpc_port: int | None = 8500
    n_threads: int = 2
    n_waiting: int = 64
    max_bytes: int = 4 * 2**20
    max_length: int = 4096
    max_sessions: int = 64
    idle_seconds: float = 600.0
    client_seconds: float = 30.0
    grace_seconds: float = 30.0
