"""The threads for plain stages."""

import threading

from ulak.engine.threads import Threads


def test_work_runs_on_as_many_threads_as_are_needed_and_no_more() -> None:
    threads = Threads(3, "test")
    names: set[str] = set()
    done = threading.Semaphore(0)

    def work() -> None:
        names.add(threading.current_thread().name)
        done.release()

    for _ in range(50):
        threads.run(work)
        assert done.acquire(timeout=10)
    assert 1 <= len(names) <= 3
    together = threading.Barrier(3, timeout=10)

    def meet() -> None:
        together.wait()
        done.release()

    for _ in range(3):
        threads.run(meet)
    for _ in range(3):
        assert done.acquire(timeout=10), "three at once: none waits behind another"
    threads.close()


def test_a_thread_that_hangs_is_not_waited_for() -> None:
    threads = Threads(1, "test")
    go_on = threading.Event()
    threads.run(lambda: go_on.wait(20) and None)
    threads.close()
    go_on.set()
