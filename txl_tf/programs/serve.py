"""Serves a run over HTTP: scores and completions in the style of OpenAI's API, with sessions.

txl serve --run runs/text8
"""

import os

from absl import flags

from txl_tf.errors import require_extra
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import (
    choose_run,
    define_precision_flag,
    define_run_flags,
    open_chosen_run,
    warn_of_no_memory,
)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flags(options)
    define_precision_flag(options)
    name_help = "Name of the model in requests. [default: that of the folder]"
    define_flag(options, "name", str, None, name_help)
    host_help = (
        "Address to listen on. There are no passwords: any client that reaches it is served."
    )
    define_flag(options, "host", str, "127.0.0.1", host_help)
    port_help = "Port to listen on; 0 for any free one."
    define_flag(options, "port", int, 8501, port_help, lower_bound=0, upper_bound=65_535)
    tokens_help = "Largest number of tokens that a request may add to a text."
    define_flag(options, "max_tokens", int, 4096, tokens_help, lower_bound=16)
    sessions_help = "Largest number of sessions, each with the memory of a text."
    define_flag(options, "max_sessions", int, 16, sessions_help, lower_bound=0)
    idle_help = "Seconds that a session is kept after its last request."
    define_flag(options, "idle", float, 600.0, idle_help, lower_bound=0.1)
    return options


@program(__doc__, define_flags, positional="run")
def main(options: flags.FlagValues) -> None:
    """Serves a run until SIGTERM or Ctrl-C."""
    if not options.host:
        raise flags.Error("--host must name an address (is a shell variable not set?)")
    choose_run(options)
    with require_extra("serve", "the server"):
        from txl_tf.apps.server.http_app import HttpApp
    from txl_tf.apps.server.model_service import ModelService

    lm = open_chosen_run(options)
    warn_of_no_memory(lm, options.run)
    name = options.name or os.path.basename(os.path.abspath(options.run))
    app = HttpApp(
        ModelService(lm, name),
        max_tokens=options.max_tokens,
        max_sessions=options.max_sessions,
        idle_seconds=options.idle,
    )
    app.run(options.host, options.port)
