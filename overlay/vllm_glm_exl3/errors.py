"""What this plugin refuses. Every message names the tensor or module, what was found, and what to do."""


class Exl3Error(ValueError):
    """Base of the errors below."""


class UnknownPack(Exl3Error):
    """A checkpoint of a kind that this plugin does not serve, or one that contradicts its own configuration."""


class BadSlice(Exl3Error):
    """A tensor that cannot be divided among the ranks."""


class NoPath(Exl3Error):
    """No execution path can run this layer here."""


class BadAblation(ValueError):
    """An edit that cannot be made, or not as asked: nothing may be served then."""
