"""Run somebody's program as ``python`` itself would."""

from __future__ import annotations

import functools
import importlib.machinery
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any, Callable, Optional

# What ``python -m MODULE`` calls; it runs in the ``__main__`` of the time, as nothing public does.
_run_as_main: Callable[..., Any] = getattr(runpy, "_run_module_as_main")  # noqa: B009
_OUR_FRAMES = (__file__, runpy.__file__, "<frozen runpy>")


def script(path: str, arguments: Sequence[str]) -> Callable[[], None]:
    """What runs as ``python PATH ARGUMENTS``: a file, or a folder or zip file of a ``__main__``.

    Raises OSError if the file cannot be read; what it returns raises what the program raises.
    """
    if pkgutil.get_importer(path) is not None:
        return functools.partial(_run_folder, path, arguments)
    with open(path, "rb") as file:
        return functools.partial(_run_source, file.read(), path, arguments)


def _run_folder(path: str, arguments: Sequence[str]) -> None:
    _become([path, *arguments], os.path.abspath(path))
    _run(lambda: _run_as_main("__main__", alter_argv=False))


def _run_source(source: bytes, path: str, arguments: Sequence[str]) -> None:
    main = _become([path, *arguments], os.path.dirname(os.path.realpath(path)))
    file = os.path.abspath(path)
    loader = importlib.machinery.SourceFileLoader("__main__", file)
    main.__dict__.update(__file__=file, __cached__=None, __loader__=loader)
    _run(lambda: exec(compile(source, file, "exec", dont_inherit=True), main.__dict__))


def run_module(name: str, arguments: Sequence[str]) -> None:
    """As ``python -m NAME ARGUMENTS``. Raises what the program raises."""
    _become(["-m", *arguments], os.getcwd())
    _run(lambda: _run_as_main(name))


def _become(argv: list[str], folder: str) -> ModuleType:
    """Make room for a program: its arguments, its place in the import path, a new ``__main__``."""
    sys.argv[:] = argv
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = folder
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    return main


def _run(program: Callable[[], object]) -> None:
    try:
        program()
    except Exception as error:
        _show_without_us(error)
        raise
    except KeyboardInterrupt as interrupt:
        _show_without_us(interrupt)
        raise


def _show_without_us(error: BaseException) -> None:
    """Show the error as it would be shown without this module, and only once."""
    sys.excepthook(type(error), error.with_traceback(_theirs(error.__traceback__)), None)
    # Python still exits afterwards, with its status or, for Ctrl-C, the signal.
    sys.excepthook = lambda *_: None


def _theirs(traceback: Optional[TracebackType]) -> Optional[TracebackType]:
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _OUR_FRAMES:
        traceback = traceback.tb_next
    return traceback
