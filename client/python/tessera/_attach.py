"""Python methods for classes that are made elsewhere."""

import types


def attach(target, module="tessera"):
    """Class decorator: the body's functions and properties become the target's."""

    def move(body):
        for name, value in vars(body).items():
            if name not in ("__module__", "__dict__", "__weakref__", "__doc__", "__qualname__"):
                for function in (value, getattr(value, "fget", None), getattr(value, "__func__", None)):
                    if isinstance(function, types.FunctionType):
                        function.__qualname__ = f"{target.__name__}.{name}"     # errors say it
                setattr(target, name, value)
        target.__module__ = module
        return target

    return move
