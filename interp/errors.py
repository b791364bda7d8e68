"""The one exception type that is shown to a person as a single sentence."""


class UserError(Exception):
    """Something the person at the keyboard can mend: names the value, the rule and the way out, without a traceback."""
