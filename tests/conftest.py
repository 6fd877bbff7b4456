"""What the tests take for granted of the process that they run in."""

from __future__ import annotations

import signal

# A shell starts what runs in its background with these ignored, and children inherit that: those
# that the tests interrupt would run on.
for name, usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    number = getattr(signal, name, None)  # Windows has no SIGHUP
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)
