"""The exception that is shown to the user as a single sentence."""


class UserError(Exception):
    """A mistake that the user can fix. The message names the value, the rule and the way out; no traceback is shown."""
