"""The one exception that means: the input is wrong, and here is the sentence that says how."""


class InputError(ValueError):
    """Bad input: the message is one sentence naming the field, its value and what is allowed.

    The command line prints it without a traceback and exits with code 2.
    """
