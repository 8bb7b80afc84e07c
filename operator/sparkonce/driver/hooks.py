"""Wraps methods of Python's classes for a time, in packages that are not imported yet, too.

A package may become importable long after the block began: Delta's comes with its jar when Spark's JVM starts, and a script may add one by
`addPyFile`. Importing such packages in advance was not taken: most drivers need none, and some take a second.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hook = tuple[type, str, Callable[[Callable[..., Any]], Callable[..., Any]]]
"""A class, the name of its method, and what makes the wrapper of the original one."""
HooksOfModules = Mapping[str, Callable[[Any], Iterable[Hook]]]
"""The hooks of modules by their names; each is given its module once that is imported."""


@contextlib.contextmanager
def hooked(hooks: Iterable[Hook], modules: HooksOfModules) -> Iterator[None]:
    """Wraps these methods while the context is open, and those of the modules, as soon as they are imported."""
    with contextlib.ExitStack() as undo:

        def install(found: Iterable[Hook]) -> None:
            for owner, name, wrapper in found:
                original = owner.__dict__[name]
                setattr(owner, name, _wrapped(original, wrapper))
                undo.callback(setattr, owner, name, original)

        def imported(of: Callable[[Any], Iterable[Hook]], module: ModuleType) -> None:
            install(of(module))

        install(hooks)
        finder = _Finder({name: functools.partial(imported, of) for name, of in modules.items()})
        sys.meta_path.insert(0, finder)
        undo.callback(sys.meta_path.remove, finder)
        for name, of in modules.items():
            if name in sys.modules:
                install(of(sys.modules[name]))
        yield


def _wrapped(original: Any, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    if isinstance(original, classmethod):
        return classmethod(functools.wraps(original.__func__)(wrapper(original.__func__)))
    return functools.wraps(original)(wrapper(original))


class _Finder(MetaPathFinder):
    """Finds the modules that have hooks where the finders after it find them."""

    def __init__(self, then: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        then = self._then.get(fullname)
        if then is None:
            return None
        after = [*itertools.dropwhile(lambda finder: finder is not self, sys.meta_path)][1:]
        specs = (finder.find_spec(fullname, path, target) for finder in after)
        spec = next((each for each in specs if each is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, then)
        return spec


class _Loader(Loader):
    """Imports a module by its own loader, then calls what waits for it."""

    def __init__(self, own: Loader, then: Callable[[ModuleType], None]) -> None:
        self._own, self._then = own, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None  # importlib's own, of `find_spec`
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        self._then(module)
