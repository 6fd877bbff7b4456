"""The errors and the warning that this package raises on its own account."""


class SDPAGuardError(Exception):
    """Base of every error that sdpa_guard itself raises."""


class OversizedCallError(SDPAGuardError, RuntimeError):
    """With ``policy="raise"``: an attention call is over a limit; no kernel was launched."""


class SDPAGuardWarning(UserWarning):
    """An attention call over a limit was left as it is, or the guard could not do its work."""
