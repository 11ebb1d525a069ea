"""Python methods for the extension's classes."""


def attach(target):
    """Class decorator: the body's functions and properties become the target's."""

    def move(body):
        for name, value in vars(body).items():
            if name not in ("__module__", "__dict__", "__weakref__", "__doc__", "__qualname__"):
                setattr(target, name, value)
        target.__module__ = "tessera"
        return target

    return move
