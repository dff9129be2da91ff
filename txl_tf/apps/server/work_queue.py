"""The threads that compute, and the bounded number of requests that may wait for them."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TypeVar

from txl_tf.apps.server.refusals import RefusedError

Result = TypeVar("Result")


class WorkQueue:
    """Runs functions in a bounded number of threads, in the order in which they were asked for.

    A request holds a place from before its body is read until its answer is sent, so the memory
    that requests take is bounded. All methods must be called in the thread of the event loop.

    Args:
        n_threads: The number of threads.
        n_waiting: The number of requests that may hold a place beside one for each thread.
    """

    def __init__(self, n_threads: int, n_waiting: int):
        self.n_places = n_threads + n_waiting
        self._n_free = self.n_places
        self._threads = asyncio.Semaphore(n_threads)
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix="txl_tf")

    @contextlib.contextmanager
    def hold_place(self) -> Iterator[None]:
        """Holds a place for a request.

        Raises:
            RefusedError: If all places are taken, status 503.
        """
        if not self._n_free:
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the server is busy: {self.n_places} requests are in progress",
            )
        self._n_free -= 1
        try:
            yield
        finally:
            self._n_free += 1

    async def run(
        self, check: Callable[[], None], function: Callable[..., Result], *arguments: object
    ) -> Result:
        """Returns the result of a function, which is called in one of the threads.

        Args:
            check: Called before, when a thread is free; it raises if the result is not wanted.
            function: The function.
            *arguments: Its arguments.
        """
        async with self._threads:
            check()
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, function, *arguments)

    def close(self) -> None:
        """Waits for the functions that are running and ends the threads."""
        self._pool.shutdown(cancel_futures=True)
