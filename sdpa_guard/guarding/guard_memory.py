"""What a guard keeps while it works: what it saw and said, and the calls that it recognises."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Hashable
from typing import Any, Optional

from ..errors import SDPAGuardWarning
from ..limits.call import Call
from ..limits.findings import Finding, examine, exceeded
from ..limits.limit import on_gpu
from ..limits.releases import Release
from .call_key import UNKNOWN, call_key
from .call_site import Site
from .decision import Answers, Decision, decide
from .keep_eager import uncompiled
from .ledger import Ledger
from .options import Options

#: Calls that a guard remembers; a run with ever new shapes must not fill the memory.
_MOST = 4096


class Memory:
    """One guard's memory, over all its scopes and threads."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ledger = Ledger()
        #: The keys of calls that were inside every bound.
        self._trusted: set[Hashable] = set()
        self._warned: set[object] = set()
        self._examined = functools.lru_cache(maxsize=_MOST)(self._examine)
        self._decided = functools.lru_cache(maxsize=_MOST)(functools.partial(decide, options))

    @uncompiled
    def recognises(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether such a call was inside every bound before; it is counted if so."""
        try:
            if call_key(args, kwargs) not in self._trusted:
                return False
        except TypeError:
            return False  # symbolic sizes
        self.ledger.calls.add()
        return True

    def trust(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Recognise such calls from now on."""
        seen = call_key(args, kwargs)
        if seen is UNKNOWN:
            return
        if len(self._trusted) >= _MOST:
            self._trusted.clear()
        with contextlib.suppress(TypeError):
            self._trusted.add(seen)

    def examine(
        self,
        call: Call,
        releases: tuple[Release, ...],
        capability: Optional[tuple[int, int]],
    ) -> tuple[Finding, ...]:
        """Every limit that the call could meet, whichever backend takes it."""
        try:
            return self._examined(call, releases, capability)
        except TypeError:  # symbolic sizes have no hash, and each further question binds them
            return exceeded(call, on_gpu(self.options.limits, capability), releases)

    def decide(self, call: Call, answers: Answers) -> Decision:
        """The decision, remembered by the call's facts and torch's answers."""
        return self._decided(call, answers)

    def warn_once(self, about: object, message: str, site: Site) -> None:
        """Warn at the user's line, once for each thing to warn about."""
        if about not in self._warned:
            warnings.warn_explicit(message, SDPAGuardWarning, site.filename, site.lineno)
            self._warned.add(about)  # only now: a filter may turn the warning into an error

    def _examine(
        self,
        call: Call,
        releases: tuple[Release, ...],
        capability: Optional[tuple[int, int]],
    ) -> tuple[Finding, ...]:
        findings = examine(call, on_gpu(self.options.limits, capability), releases)
        self.ledger.measured(findings)
        return findings
