"""What the tests take for granted of the process that they run in."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

# torch compiles in this process: those that it would start for that import torch first.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch

pytest.register_assert_rewrite("helpers")

#: Modules with a fixture that takes long to make.
ONE_WORKER = ("test_distributed.py", "test_process_wide.py")

# A shell starts what runs in its background with these ignored, and children inherit that: those
# that the tests interrupt would run on.
for name, usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    number = getattr(signal, name, None)  # Windows has no SIGHUP
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture(autouse=True)
def _the_same_numbers_in_any_order() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """``sdpa-guard`` in processes that have torch already."""
    from helpers.forked import Forks

    with Forks(tmp_path_factory.mktemp("forks")) as forks:
        yield forks


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first, in whatever order: the last worker to end would be at one of them."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker takes all tests of a module of ``ONE_WORKER``; else each test is by itself."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return module if module.endswith(ONE_WORKER) else nodeid

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Without coverage, which would double the time of the slow ones."""
    if item.get_closest_marker("slow") is None:
        return (yield)
    tracer = sys.gettrace()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]:
            patch.delenv(name)
        sys.settrace(None)
        try:
            return (yield)
        finally:
            sys.settrace(tracer)
