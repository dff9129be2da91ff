"""Serves a SavedModel over HTTP and gRPC, as TensorFlow Serving does, with generation in sessions.

python -m txl_tf.serve --model exported/text8
"""

import os
import shlex
import sys

from absl import flags

from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.errors import UserError, require_extra

_MIB = 2**20


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), serve_model, argv, positional="model")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    model_help = "Folder that txl_tf.export has written. May be the first argument."
    define_flag(options, "model", str, None, model_help, required=True, is_path=True)
    name_help = "Name of the model in requests. [default: that of the folder]"
    define_flag(options, "name", str, None, name_help)
    host_help = (
        "Address to listen at. Any client that reaches it is served: there are no passwords."
    )
    define_flag(options, "host", str, "127.0.0.1", host_help)
    port_help = "Port for HTTP; 0 for any that is free."
    define_flag(options, "port", int, 8501, port_help, lower_bound=0, upper_bound=65_535)
    grpc_help = "Port for gRPC; 0 for any that is free, -1 for no gRPC."
    define_flag(options, "grpc_port", int, 8500, grpc_help, lower_bound=-1, upper_bound=65_535)
    threads_help = "Number of threads that compute. [default: the number of cores]"
    define_flag(options, "threads", int, None, threads_help, lower_bound=1)
    queue_help = "Number of requests that may wait for a thread; others are refused."
    define_flag(options, "queue", int, 64, queue_help, lower_bound=0)
    body_help = "Largest body of a request, in MiB."
    define_flag(options, "max_body", float, 4.0, body_help, lower_bound=0.001, upper_bound=1024)
    length_help = "Largest number of tokens that a request may generate."
    define_flag(options, "max_length", int, 4096, length_help, lower_bound=1)
    sessions_help = "Largest number of sessions; the start says how much memory one takes."
    define_flag(options, "max_sessions", int, 64, sessions_help, lower_bound=0)
    idle_help = "Seconds that a session is kept after its last request."
    define_flag(options, "idle", float, 600.0, idle_help, lower_bound=0.1)
    client_help = "Seconds that a client may take to send its body, or to take a part of an answer."
    define_flag(options, "client_timeout", float, 30.0, client_help, lower_bound=0.1)
    grace_help = "Seconds that requests in progress may take after SIGTERM."
    define_flag(options, "grace", float, 30.0, grace_help, lower_bound=0)
    return options


def serve_model(options: flags.FlagValues) -> None:
    """Serves a model until SIGTERM or Ctrl-C.

    Raises:
        UserError: If the folder is not a SavedModel, a package is missing, or a port cannot be
            listened at.
    """
    if os.path.exists(os.path.join(options.model, "config.json")):
        run = shlex.quote(options.model)
        raise UserError(
            f"`{options.model}` is a run. Export it first: python -m txl_tf.export --run {run} "
            "--out FOLDER, then serve FOLDER"
        )
    if not os.path.exists(os.path.join(options.model, "saved_model.pb")):
        raise UserError(
            f"`{options.model}` is not a SavedModel, which txl_tf.export writes: saved_model.pb is "
            "missing"
        )
    with require_extra("serve", "the server"):
        from txl_tf.apps.server.running import run_server
    from txl_tf.apps.server.served_folder import ServedFolder
    from txl_tf.apps.server.settings import ServerSettings

    settings = ServerSettings(
        host=options.host,
        port=options.port,
        grpc_port=None if options.grpc_port < 0 else options.grpc_port,
        n_threads=options.threads or os.cpu_count() or 1,
        n_waiting=options.queue,
        max_bytes=round(options.max_body * _MIB),
        max_length=options.max_length,
        max_sessions=options.max_sessions,
        idle_seconds=options.idle,
        client_seconds=options.client_timeout,
        grace_seconds=options.grace,
    )
    folder = ServedFolder(
        options.model, options.name, max_length=settings.max_length, max_bytes=settings.max_bytes
    )
    run_server(folder, settings)


if __name__ == "__main__":
    sys.exit(main())
