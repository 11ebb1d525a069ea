"""Counts the records that a public function asks for: one for each op and each upload, of an example's call alone.

    for name, example in examples(): print(name, CountedCall(session, name, example, names).run())
"""

from types import SimpleNamespace

from tessera._examples import EXAMPLES

import tessera as ts


def examples() -> dict:
    """By the function's name ("linalg.inv"): an expression that calls it."""
    return {name: example.partition(" => ")[0] for name, example in EXAMPLES.items()}


def record_count(session) -> int:
    counts = session._counts()
    return counts["tessera_client_calls"] + counts["tessera_client_uploads"]


class _Space:
    """A module, with one of its functions replaced."""

    def __init__(self, module, name, function):
        self._module, self._name, self._function = module, name, function

    def __getattr__(self, name):
        return self._function if name == self._name else getattr(self._module, name)


class CountedCall:
    """An example, whose call of the function is counted by itself: its arguments are made before."""

    def __init__(self, session, name: str, expression: str, names: dict):
        self.session, self.name, self.expression, self.names = session, name, expression, names

    def run(self):
        """(what the function gave, how many records it asked for)."""
        space, _, own = self.name.rpartition(".")
        module = getattr(ts, space) if space else ts
        found = SimpleNamespace(results=[], records=0)

        def counted(*args, **kwargs):
            before = record_count(self.session)
            found.results.append(getattr(module, own)(*args, **kwargs))
            found.records = max(found.records, record_count(self.session) - before)
            return found.results[-1]
        inner = _Space(module, own, counted)
        eval(self.expression, {**self.names, "ts": _Space(ts, space, inner) if space else inner})
        assert found.results, f"{self.name}: its example {self.expression} doesn't call it"
        return found.results, found.records
