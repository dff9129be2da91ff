"""Handlers for the signals to stop: Ctrl-C, and SIGTERM before a machine is preempted."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def note_stop_signals() -> Iterator[list[signal.Signals]]:
    """Yields a list that receives the first signal to stop, so that a run can save.

    A second signal interrupts the program.
    """
    received: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(signal.Signals(number))
        print(f"{received[0].name}: saving after the current steps; a second one stops at once.")

    with _handle(note):
        yield received


@contextlib.contextmanager
def end_on_interrupt() -> Iterator[None]:
    """Lets Ctrl-C end the process at once while TensorFlow waits and blocks all Python code.

    Afterwards, SIGTERM ends the process again: TensorFlow replaces its handler when it joins other
    processes, and would ignore the signal.
    """
    with _handle(signal.SIG_DFL):
        yield


@contextlib.contextmanager
def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Installs a handler for the signals to stop; does nothing outside the main thread."""
    try:
        previous = [signal.signal(number, handler) for number in SIGNALS]
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, before in zip(SIGNALS, previous, strict=True):
            signal.signal(number, before)
