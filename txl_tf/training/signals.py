"""Being asked to stop: Ctrl-C, and the notice that comes before a machine is taken away."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from txl_tf.errors import StoppedError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Takes note of the first signal to stop, so that a run can save; the second one stops it.

    A context manager; outside of it signals act as before. In threads other than the main one,
    which get no signals, it does nothing.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in SIGNALS:
            try:
                self._previous[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        print(f"{self.received.name}: saves after these steps; once more stops at once.")


@contextlib.contextmanager
def stop_at_once(doing: str) -> Iterator[None]:
    """Has a signal to stop raise, while there is nothing to save.

    Without a handler, SIGTERM would do nothing to the first process of a container.

    Args:
        doing: what is stopped, for the message.

    Raises:
        StoppedError: a signal came.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise StoppedError(f"stopped by {name} while {doing}", 128 + number)

    with _handle(stop):
        yield


@contextlib.contextmanager
def end_on_interrupt() -> Iterator[None]:
    """Lets Ctrl-C end the process at once, where tensorflow waits and lets no Python run.

    Afterwards SIGTERM ends it, too, as before: tensorflow takes it over when it joins other
    processes, and would do nothing.
    """
    with _handle(signal.SIG_DFL):
        yield


@contextlib.contextmanager
def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Has a handler take the signals to stop; in other threads than the main one, nothing."""
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
