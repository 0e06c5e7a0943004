"""The one exception that is meant for the user rather than for a programmer."""


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message says what was given, where, what is allowed and what to do. One fault is one line;
    several faults of one file are several lines. Commands print it without a traceback.
    """
