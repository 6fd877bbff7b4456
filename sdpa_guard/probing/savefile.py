"""The file of measurements: what is in it is not measured again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Optional

import torch

from ..errors import SDPAGuardError
from .measurement import is_lasting
from .trial import Trial

_FORMAT = "sdpa_guard probe 1"


class SaveFileError(SDPAGuardError):
    """The file holds something else, or cannot be read or written."""


class SaveFile:
    """Measurements by GPU, torch and trial; the file is whole at any time.

    Without a path nothing is kept. Raises SaveFileError if the file is not of this kind, or could
    not be written: it says so before a measurement, which takes long.
    """

    def __init__(self, path: Optional[Path] = None) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []
        if path is not None:
            self._rows = _read(path)
            _check_writable(path)

    def measured(self, gpu: str, trial: Trial, how: str) -> Optional[str]:
        """What was measured; None where it has to be."""
        key = _key(gpu, trial, how)
        for row in self._rows:
            if all(row[name] == part for name, part in key.items()):
                measured: str = row["measured"]
                return measured
        return None

    def add(self, gpu: str, trial: Trial, how: str, measured: str) -> None:
        """Keep it, unless another try could show something else."""
        if self._path is not None and is_lasting(measured):
            self._rows.append({**_key(gpu, trial, how), "measured": measured})
            self._write(self._path)

    def _write(self, path: Path) -> None:
        new = _beside(path)
        try:
            new.write_text(json.dumps({"format": _FORMAT, "rows": self._rows}, indent=1) + "\n")
            new.replace(path)
        except OSError as fault:
            raise _unwritable(path, fault) from fault
        finally:
            with contextlib.suppress(OSError):
                new.unlink()


def _key(gpu: str, trial: Trial, how: str) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "torch": torch.__version__,
        "how": how,
        "trial": dataclasses.asdict(trial),
    }


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.new")


def _check_writable(path: Path) -> None:
    try:
        _beside(path).touch()
        _beside(path).unlink()
    except OSError as fault:
        raise _unwritable(path, fault) from fault


def _unwritable(path: Path, fault: OSError) -> SaveFileError:
    return SaveFileError(f"cannot write {str(path)!r}: {fault.strerror}")


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        if path.exists() and not path.is_file():
            raise SaveFileError(f"cannot read {str(path)!r}: it is no regular file")
        held = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise SaveFileError(f"cannot read {str(path)!r}: {fault.strerror}") from fault
    except (ValueError, RecursionError) as fault:
        raise SaveFileError(f"{str(path)!r} is damaged, or no file of probe's: {fault}") from fault
    if not isinstance(held, dict) or held.get("format") != _FORMAT:
        raise SaveFileError(f"{str(path)!r} is no file of probe's: it does not say {_FORMAT!r}")
    rows = held.get("rows")
    if not isinstance(rows, list) or not all(map(_is_measurement, rows)):
        raise SaveFileError(f"{str(path)!r} is damaged: not all of its rows are measurements")
    return rows


def _is_measurement(row: object) -> bool:
    texts = ("gpu", "torch", "how", "measured")
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(name), str) for name in texts)
        and isinstance(row.get("trial"), dict)
    )
