"""How far the probe is: one line rewritten on a terminal, else one for each measurement."""

from __future__ import annotations

import shutil
from typing import Optional, TextIO

_BAR = 20


class Progress:
    """Writes to a stream, or to none; ``close`` it."""

    def __init__(self, stream: Optional[TextIO], total: int) -> None:
        self._stream = stream
        self._total = total
        self._line = ""
        self._rewrites = stream is not None and stream.isatty()

    def begin(self, number: int, title: str) -> None:
        """The measurement of that number starts, counted from 1."""
        self._line = f"{number}/{self._total}  {title}"
        if self._rewrites:
            done = _BAR * (number - 1) // self._total
            line = f"[{'#' * done}{'.' * (_BAR - done)}] {self._line}"
            self._show(f"\r\x1b[2K{line[: shutil.get_terminal_size().columns - 1]}")

    def end(self, measured: str) -> None:
        if not self._rewrites:
            self._show(f"{self._line}: {measured}\n")

    def close(self) -> None:
        """Leave the terminal's line empty."""
        if self._rewrites:
            self._show("\r\x1b[2K")

    def _show(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
