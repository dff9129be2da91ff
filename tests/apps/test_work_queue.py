import asyncio
import threading

import pytest

from txl_tf.apps.server.refusals import RefusedError
from txl_tf.apps.server.work_queue import WorkQueue


def want():
    pass


def test_a_place_too_many_is_refused_and_places_come_back():
    queue = WorkQueue(2, 1)
    for _ in range(2):
        with queue.hold_place(), queue.hold_place(), queue.hold_place():
            with pytest.raises(RefusedError, match="3 requests are in progress") as raised:
                queue.hold_place().__enter__()
            assert raised.value.status == 503
    queue.close()


def test_no_more_functions_run_at_once_than_there_are_threads():
    running, most, lock = 0, 0, threading.Lock()
    barrier = threading.Barrier(2)

    def work(index):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(60)  # two of them do run at once
        with lock:
            running -= 1
        return index

    async def run():
        queue = WorkQueue(2, 9)
        found = await asyncio.gather(*(queue.run(want, work, index) for index in range(6)))
        queue.close()
        return found

    assert asyncio.run(run()) == list(range(6))
    assert most == 2


def test_work_that_is_not_wanted_any_more_is_not_done():
    done = []

    def refuse():
        raise KeyError

    async def run():
        queue = WorkQueue(1, 9)
        with pytest.raises(KeyError):
            await queue.run(refuse, done.append, 1)
        await queue.run(want, done.append, 2)
        queue.close()

    asyncio.run(run())
    assert done == [2]
