"""Checks that torch has its own kernels back, in a process of their own.

The guard leaves its kernel in place where it is closed while other threads run, and the process
that runs the tests may have some. ``python -m helpers.kernel_checks`` makes every check, and
prints in JSON what each has found wrong.
"""

from __future__ import annotations

import json
import threading
import traceback
from typing import Callable

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import sdpa_guard
from helpers.route import DEVICE_TYPES, LOWERED, guard
from helpers.torch_inside import kernels
from sdpa_guard.testing import record_calls


def enable() -> None:
    sdpa_guard.enable(limits=LOWERED, device_types=DEVICE_TYPES)


def attend() -> torch.Tensor:
    query = torch.ones(5, 2, 4, 8)
    return scaled_dot_product_attention(query, query, query)


def enable_guards_and_disable_leaves_no_trace() -> None:
    before = kernels()
    assert not sdpa_guard.is_enabled()
    with record_calls() as calls:
        enable()
        assert sdpa_guard.is_enabled()
        attend()
        sdpa_guard.disable()
        attend()
    assert [call.query[0] for call in calls] == [2, 2, 1, 5]
    assert not sdpa_guard.is_enabled()
    assert kernels() == before


def the_kernels_are_others_while_the_guard_is_on() -> None:
    """What the other checks look at changes at all."""
    before = kernels()
    for opened in (guard(), guard()):
        with opened:
            assert kernels() != before
        assert kernels() == before


def enable_and_disable_while_other_threads_attend() -> None:
    before = kernels()
    expected = attend()
    # Threads that make their first comparison at once stop each other for ever in torch 2.3.
    torch.testing.assert_close(expected, expected)
    stop = threading.Event()
    wrong: list[object] = []

    def work() -> None:
        try:
            while not stop.is_set():
                torch.testing.assert_close(attend(), expected)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        enable()
        with guard():
            attend()
        sdpa_guard.disable()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    sdpa_guard.disable()
    assert kernels() == before


def threads_enable_and_disable_at_once() -> None:
    def work() -> None:
        for _ in range(30):
            enable()
            sdpa_guard.disable()

    before = kernels()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not sdpa_guard.is_enabled()
    sdpa_guard.disable()
    assert kernels() == before


def a_scope_left_in_another_thread_gives_its_kernel_back() -> None:
    before = kernels()
    opened = guard()
    thread = threading.Thread(target=opened.__enter__)
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match="mode stack"):  # torch's own word for it
        opened.__exit__(None, None, None)
    assert kernels() == before


CHECKS = {
    check.__name__: check
    for check in (
        enable_guards_and_disable_leaves_no_trace,
        the_kernels_are_others_while_the_guard_is_on,
        enable_and_disable_while_other_threads_attend,
        threads_enable_and_disable_at_once,
        a_scope_left_in_another_thread_gives_its_kernel_back,
    )
}


def fault(check: Callable[[], None]) -> str | None:
    try:
        check()
    except BaseException:
        return traceback.format_exc()
    return None


if __name__ == "__main__":
    print(json.dumps({name: fault(check) for name, check in CHECKS.items()}))
