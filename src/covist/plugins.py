"""Modules that register methods and families: covist's own, those of other packages, and files that a user names.

A package announces such modules under the group `covist.methods` or `covist.families`:

    [project.entry-points."covist.methods"]
    loudest = "covist_loudest"
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from covist.errors import CovistError
from covist.opening import open_file

_LOADED: set[Plugin] = set()


@dataclass(frozen=True)
class Plugin:
    """A file or a module that registers methods or families when it is run, as `--plugin` names it.

    It can be sent to another process, which then runs the same code even if it does not see the file.

    name: the path of the file, or the name of the module
    code: the contents of the file; those of the module's file only identify it
    """

    name: str
    code: bytes

    @classmethod
    def of(cls, given: str) -> Plugin:
        """The plugin of a path or a module's name; one that is not there is refused."""
        if _is_path(given):
            with open_file(given, "plugin") as file:
                return cls(given, file.read())
        try:
            found = find_spec(given)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise CovistError(f"plugin {given}: there is no such module; give a file with its ending, {given}.py")
        origin = Path(found.origin or "")
        return cls(given, origin.read_bytes() if origin.is_file() else b"")

    @property
    def identity(self) -> str:
        """Its name and a checksum, which changes with its code."""
        return f"{Path(self.name).name} {sha256(self.code).hexdigest()[:12]}"

    @property
    def module_name(self) -> str:
        """Of the module that it becomes."""
        if not _is_path(self.name):
            return self.name
        return f"plugin_{Path(self.name).stem}_{sha256(self.code).hexdigest()[:8]}"

    def load(self) -> None:
        """Run it, once in a process; whatever goes wrong is a `CovistError` that names its line."""
        if self in _LOADED:
            return
        try:
            self._run() if _is_path(self.name) else importlib.import_module(self.name)
        except (Exception, SystemExit) as error:
            kind = "" if isinstance(error, CovistError) else f"{type(error).__name__}: "
            problem = " ".join(f"{kind}{error}".split())
            raise CovistError(f"plugin {self.name}{self._line(error)}: {problem}") from error
        _LOADED.add(self)

    def _run(self) -> None:
        module = ModuleType(self.module_name)
        module.__file__ = self.name
        sys.modules[module.__name__] = module  # where dataclasses and pickles look for it
        exec(compile(self.code, self.name, "exec"), vars(module))  # what --plugin is for

    def _line(self, error: BaseException) -> str:
        """The last line of the file that ran."""
        lines, trace = [], error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.name:
                lines.append(trace.tb_lineno)
            trace = trace.tb_next
        return f" line {lines[-1]}" if lines else ""


def code_identity(kind: type) -> str | None:
    """A checksum of the file that defined a class; None of a class that was typed in, which has no file."""
    module = sys.modules.get(kind.__module__)
    ran = next((plugin.code for plugin in _LOADED if plugin.module_name == kind.__module__), None)
    if ran is None:
        path = Path(getattr(module, "__file__", None) or "")
        if not path.is_file():
            return None
        ran = path.read_bytes()
    return sha256(ran).hexdigest()[:12]


def _is_path(given: str) -> bool:
    return given.endswith(".py") or Path(given).name != given


def load_modules(package: str) -> None:
    """Import every module of one of covist's packages, then the modules that others announce under its name.

    This order lets covist's own method or family win if two have the same name.
    """
    import_all(package)
    _load_plugins(package)


def import_all(name: str) -> None:
    """Import a module and, if it is a package, all modules in it.

    Modules with an underscore register nothing, and some of them import transformers, which lists and plans do not
    need.
    """
    module = importlib.import_module(name)
    for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if not inner.name.startswith("_"):
            import_all(f"{name}.{inner.name}")


def _load_plugins(group: str) -> None:
    """Import every module that installed packages announce under `group`.

    A plugin that fails is left out with a warning that names it, so that covist still works.
    """
    for point in entry_points(group=group):
        try:
            point.load()
        except Exception as error:
            package = point.dist.name if point.dist is not None else point.value
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            warnings.warn(f"plugin {point.name!r} of package {package} is left out ({reason})", stacklevel=2)
