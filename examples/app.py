"""Shows a model in a browser: text with its memory, surprisal, and attention.

python examples/app.py --run runs/demo
"""

import contextlib
import functools
import html
import inspect
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from absl import flags

from txl_tf.errors import UserError, explain, require_extra
from txl_tf.pretrained import is_pretrained
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program
from txl_tf.programs.cli.run_flags import (
    choose_run,
    define_mask_flag,
    define_precision_flag,
    define_run_flags,
    open_run_records,
)

if TYPE_CHECKING:
    import gradio
    from model_views import ModelViews

    from txl_tf import LanguageModel

MAX_PORT = 65_535
MAX_SESSIONS, SESSION_SECONDS = 100, 3600  # texts with their memory that are kept, and how long
MAX_AT_ONCE, MAX_WAITING = 8, 64  # requests to one button
PROMPT_TOKENS, SAMPLE_TOKENS = 60, 400  # of held-out text that the page begins with
NO_TEXT = '<p class="quiet">No text yet: the memory is empty.</p>'

CSS = """
.gradio-container { max-width: 90rem !important; margin: 0 auto; }
.quiet { font-size: 0.875rem; opacity: 0.8; overflow-wrap: anywhere; }
.facts { display: flex; flex-wrap: wrap; gap: 0.125rem 1.25rem; margin: 0 0 0.5rem; }
.facts meter { width: 6rem; margin-left: 0.375rem; }
.grown {
  padding: 0.75rem 0.875rem; border: 1px solid var(--border-color-primary); line-height: 1.6;
  white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 0.375rem; tab-size: 4;
}
.grown.layout { font-family: var(--font-mono); font-size: 0.8125rem; }
.grown .prompt { font-weight: 700; }
.grown .memory { background: rgb(66 112 200 / 0.16); }
.grown .old { opacity: 0.6; }
iframe.page {
  width: 100%; height: max(80vh, 44rem); border: 1px solid var(--border-color-primary);
}
"""


def find_sample(lm: "LanguageModel", max_tokens: int) -> tuple[str, str]:
    """Returns the initial prompt and text, from the run's held-out text if it has any."""
    if lm.run is None or is_pretrained(lm.run) or lm.vocabulary is None:
        return "", ""
    try:
        records = open_run_records(lm.run, None)
        valid = records.split("valid")
    except UserError:  # a run may have lost its records
        return "", ""
    if records.vocabulary != lm.vocabulary:  # they have been prepared anew
        return "", ""
    ids = valid.read(0, min(SAMPLE_TOKENS, max_tokens, len(valid)))
    prompt, sample = (lm.vocabulary.decode(part) for part in (ids[:PROMPT_TOKENS], ids))
    return end_at_word(prompt), end_at_word(sample)


def end_at_word(text: str) -> str:
    """Returns a text without its last word, which may be incomplete.

    >>> end_at_word("Return nex")
    'Return'
    """
    return re.sub(r"(?<=\S)\s+\S*\Z", "", text)


def report_errors(gr: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a tab's function that shows `UserError`s as messages on the page."""

    @contextlib.contextmanager
    def explain_wrong_input() -> Iterator[None]:
        try:
            yield
        except UserError as error:  # its message would be read as HTML
            message = html.escape(str(error), quote=False)
            raise gr.Error(message, title="Not possible", print_exception=False) from error

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with explain_wrong_input():
            return function(*arguments)

    @functools.wraps(function)
    def stream(*arguments: Any) -> Iterator[Any]:
        with explain_wrong_input():
            yield from function(*arguments)

    return stream if inspect.isgeneratorfunction(function) else call


def clear_error(gr: Any, event: Any, output: Any) -> None:
    """Removes the error status that Gradio leaves in an output; `report_errors` shows a message."""
    event.failure(gr.skip, None, output, show_progress="hidden", api_visibility="private")


def enable_with_text(component: Any, *buttons: Any, empty: str = "") -> None:
    """Enables buttons only while a component holds text, which the browser checks by itself."""
    update = f"{{ __type__: 'update', interactive: value !== {empty!r} }}"
    script = f"(value) => Array({len(buttons)}).fill({update})"
    component.change(None, component, list(buttons), js=script)


def make_page(
    lm: "LanguageModel", views: "ModelViews", prompt: str, sample: str, *, max_tokens: int
) -> "gradio.Blocks":
    """Returns the page with its views.

    Args:
        lm: The language model.
        views: The content of the tabs.
        prompt: The prompt that the page begins with.
        sample: The text that the page begins with.
        max_tokens: As in `ModelViews`.
    """
    import gradio as gr

    with gr.Blocks(title="txl_tf", analytics_enabled=False) as page:
        gr.HTML(f'<p class="quiet"><b>txl_tf</b> · {html.escape(lm.describe())}</p>')
        with gr.Tab("Generate"):
            add_generate_tab(gr, views, prompt, lm.span.mem_len, max_tokens)
        with gr.Tab("Surprisal"):
            add_surprisal_tab(gr, views, sample, max_tokens)
        with gr.Tab("Attention"):
            add_attention_tab(gr, views, sample, lm.config.n_layer, lm.config.n_head, max_tokens)
    return page


def add_generate_tab(
    gr: Any, views: "ModelViews", prompt: str, mem_len: int, max_tokens: int
) -> None:
    """Adds the tab in which a text grows."""
    gr.HTML(
        f'<p class="quiet">The model continues a prompt and keeps a memory of the last {mem_len:,} '
        "tokens. In the text, the prompt is bold, tokens in the memory are blue, and older tokens "
        "are gray. A token costs the same in a text of any length.</p>"
    )
    state = gr.State(time_to_live=SESSION_SECONDS)
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            given = gr.Textbox(prompt, label="Prompt", lines=4, max_lines=8)
            length = gr.Slider(
                1, max_tokens, min(300, max_tokens), step=1, precision=0, label="Length, tokens"
            )
            with gr.Row():
                start = gr.Button(
                    "Start", variant="primary", min_width=100, interactive=bool(prompt)
                )
                more = gr.Button("Continue", min_width=100, interactive=False)
                stop = gr.Button("Stop", min_width=100, interactive=False)
                forget = gr.Button("Forget", min_width=100, interactive=False)
            with gr.Accordion("Settings of a new text", open=False):
                temperature = gr.Slider(0, 2, 0.95, step=0.05, label="Temperature")
                top_k = gr.Slider(0, 200, 40, step=1, precision=0, label="Top-k, 0 for all tokens")
                top_p = gr.Slider(0, 1, 1, step=0.01, label="Top-p, 1 for all tokens")
                seed = gr.Number(0, precision=0, minimum=0, label="Seed")
        with gr.Column(scale=3, min_width=300):
            view = gr.HTML(NO_TEXT)
    inputs = [given, length, temperature, top_k, top_p, seed]
    draw = functools.partial(report_errors, gr)
    shown: dict[str, Any] = {"outputs": [state, view], "show_progress": "minimal"}
    started = start.click(draw(views.start_text), inputs, api_name="start", **shown)
    continued = more.click(draw(views.continue_text), [state, length], api_name="continue", **shown)
    drawing = [started, continued]
    enable_with_text(given, start)
    enable_with_text(view, more, stop, forget, empty=NO_TEXT)
    for event in drawing:
        clear_error(gr, event, view)
    stop.click(None, cancels=drawing, api_visibility="private")
    forget.click(lambda: (None, NO_TEXT), None, [state, view], cancels=drawing, api_name="forget")


def add_surprisal_tab(gr: Any, views: "ModelViews", sample: str, max_tokens: int) -> None:
    """Adds the tab with a text in the colors of its surprisal."""
    gr.HTML(
        '<p class="quiet">The model reads a text and predicts each of its tokens. The color of a '
        "token is its surprisal, -log2 of its probability, in bits. Point at a token to see "
        "the most likely alternatives.</p>"
    )
    text = gr.Textbox(sample, label=f"Text, up to {max_tokens:,} tokens", lines=4, max_lines=8)
    read = gr.Button("Read", variant="primary", interactive=bool(sample))
    enable_with_text(text, read)
    frame = gr.HTML()
    shown = read.click(report_errors(gr, views.show_surprisal), text, frame, api_name="surprisal")
    clear_error(gr, shown, frame)


def add_attention_tab(
    gr: Any, views: "ModelViews", sample: str, n_layer: int, n_head: int, max_tokens: int
) -> None:
    """Adds the tab with the attention of single heads."""
    gr.HTML(
        '<p class="quiet">The text shows where a head looks when it predicts a token: darker blue '
        "means a larger weight, and a dashed border a token in the memory. Click on another "
        "token, or on the button of another head of the layer. Layers, heads and tokens are "
        "counted from 0.</p>"
    )
    text = gr.Textbox(sample, label=f"Text, up to {max_tokens:,} tokens", lines=4, max_lines=8)
    with gr.Row():
        layer = gr.Dropdown(list(range(n_layer)), value=n_layer - 1, label="Layer", min_width=90)
        head = gr.Dropdown(list(range(n_head)), value=0, label="Head", min_width=90)
        token = gr.Number(0, precision=0, label="Token, 0 for the last", min_width=90)
    read = gr.Button("Read", variant="primary", interactive=bool(sample))
    enable_with_text(text, read)
    frame = gr.HTML()
    shown = gr.on(
        [read.click, layer.input, head.input, token.submit],
        report_errors(gr, views.show_attention),
        [text, layer, head, token],
        frame,
        api_name="attention",
    )
    clear_error(gr, shown, frame)


def serve_app(options: flags.FlagValues) -> None:
    """Loads the run and serves the page until the program is interrupted.

    Raises:
        UserError: If Gradio is missing, the address is not free, there is no such run, or it is
            not a Transformer-XL with a vocabulary and a memory.
    """
    check_address(options.host, options.port)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # nothing is sent to anyone

    with require_extra("app", "the app"):
        import gradio as gr
    choose_run(options)

    from model_views import ModelViews

    import txl_tf

    lm = txl_tf.load(options.run, checkpoint=options.checkpoint, precision=options.precision)
    views = ModelViews(
        lm,
        options.run,
        max_tokens=options.max_tokens,
        mask_empty_memory=options.mask_empty_memory,
    )
    page = make_page(lm, views, *find_sample(lm, options.max_tokens), max_tokens=options.max_tokens)
    url = launch_page(gr, page, options.host, options.port)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print(f"{options.run} is at {url} until Ctrl-C")
    with contextlib.suppress(KeyboardInterrupt):
        stop.wait()
    page.close(verbose=False)


def launch_page(gr: Any, page: "gradio.Blocks", host: str, port: int | None) -> str:
    """Starts a server that sends nothing to anyone else, and returns the address of the page."""
    page.queue(default_concurrency_limit=MAX_AT_ONCE, max_size=MAX_WAITING)
    fonts = {
        name: [gr.themes.Font(font) for font in stack]  # the reader's own: none is loaded
        for name, stack in (
            ("font", ("system-ui", "sans-serif")),
            ("font_mono", ("ui-monospace", "monospace")),
        )
    }
    _, url, _ = page.launch(
        server_name=host,
        server_port=port,
        theme=gr.themes.Default(primary_hue="indigo", **fonts),
        css=CSS,
        share=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        run_history=False,
        enable_monitoring=False,
        footer_links=[],
        max_file_size="1kb",  # nothing is uploaded
        state_session_capacity=MAX_SESSIONS,
        prevent_thread_lock=True,
        quiet=True,
    )
    return url


def check_address(host: str, port: int | None) -> None:
    """Checks that a server can listen on an address.

    Raises:
        UserError: If it cannot.
    """
    try:
        found = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # the latter for a name such as "127..0.1"
        place = host if port is None else f"{host}, port {port}"
        raise UserError(f"the app cannot listen at {place}: {explain(error)}") from error


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flags(options)
    define_precision_flag(options)
    define_mask_flag(options)
    text = "Largest number of tokens in a text, and to generate at once."
    define_flag(options, "max_tokens", int, 2000, text, lower_bound=2, upper_bound=100_000)
    text = "Address to listen on; 0.0.0.0 lets other machines connect."
    define_flag(options, "host", str, "127.0.0.1", text)
    text = "Port to listen on. [default: the first free one from 7860]"
    define_flag(options, "port", int, None, text, lower_bound=1, upper_bound=MAX_PORT)
    return options


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), serve_app, argv, positional="run")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
