import witness  # noqa: F401


def inner():
    {}["missing"]


def outer():
    try:
        inner()
    except KeyError as error:
        error.add_note("a note")
        raise ExceptionGroup("several", [ValueError(1), OSError(2, "text")]) from error


outer()
