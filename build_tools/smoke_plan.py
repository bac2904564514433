"""How a wheel is to be tried: what the plan of a release and ``te-wheel smoke`` ask for, checked alike."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

from packaging.requirements import Requirement

from build_tools.errors import PlanError


@dataclass(frozen=True, slots=True)
class SmokePlan:
    """How each wheel is tried.

    Attributes:
        requires: requirements that are installed once, below every wheel.
        imports: modules to import; none means those that the wheel holds at its top.
        run: Python that is run after the imports, or ``None``.
    """

    requires: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    run: str | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with it: sentences that begin with the key, ``requires``, ``import`` or ``run``."""
        found: list[str] = []
        for text in self.requires:
            try:
                Requirement(text)
            except ValueError:
                found.append(f"requires holds {text!r}, which is no requirement such as 'torch==2.13.0'")
        found += [
            f"import holds {module!r}, which is no module name such as 'demo.core'"
            for module in self.imports
            if not _is_module_name(module)
        ]
        if self.run is not None:
            try:
                _check_snippet(self.run)
            except PlanError as error:
                found.append(f"run is no Python: {error}")
        return tuple(found)


def _is_module_name(text: str) -> bool:
    """Whether ``text`` can be imported by name: ``demo.core``."""
    return all(part.isidentifier() for part in text.split("."))


def _check_snippet(text: str) -> None:
    """Refuse a snippet that is no Python.

    Raises:
        PlanError: with the line and the reason.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        raise PlanError(f"{error.msg} in {(error.text or text).strip()!r}") from None
    except ValueError as error:
        raise PlanError(f"{error} in {text!r}") from None
    except (RecursionError, MemoryError):
        raise PlanError("it is nested too deeply") from None
