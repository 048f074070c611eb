"""`covist.json`: one file with all compression settings, for Python, the command line and the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from covist.config import CovistConfig
from covist.errors import CovistError
from covist.files import as_json, load_settings, plain, save_settings
from covist.formulas.concentration import ConcentrationTracker
from covist.methods.create import create_method, reads_constants, takes_calibration
from covist.methods.grammar import is_vanilla
from covist.schedule import Calibration, check_budget, check_coverage

VERSION = 1
"""Version of the file format; a file of another version is refused."""
VERSION_KEY = "covist_settings"


@dataclass(frozen=True)
class Setup:
    """A method with all its settings, as saved in `covist.json`. None leaves a setting to the caller.

    method: the method's name with its settings, as on the command line
    budget: visual tokens per image: a count, a share, or "auto"
    concentration: the number to which CoViST's running concentration reference is frozen
    constants: CoViST's constants, if they differ from the paper's
    origin: where the settings come from, for readers of the file: data, target, versions
    min_coverage: the share of an image that must be covered; an image that is covered less runs uncompressed
    calibration: how many tokens each layer sees, for a method that uses a calibration

    `covist tune` and `covist calibrate` write such files. `covist.compress(..., config="covist.json")` and
    `--config covist.json` read them.

    >>> setup = covist.Setup(method="covist-pro", budget=96, concentration=0.05)
    >>> setup.save("covist.json")
    >>> covist.Setup.load("covist.json") == setup
    True
    >>> model, processor, clip = covist.tiny.load()
    >>> covist.compress(model, processor, clip=clip, config="covist.json")
    Compression of LlavaForConditionalGeneration by covist-pro, budget 96 (active)
      no image seen yet
    """

    method: str | None = None
    budget: int | float | str | None = None
    concentration: float | None = None
    constants: CovistConfig | None = None
    origin: dict[str, Any] = field(default_factory=dict, compare=False)
    min_coverage: float | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        """Refuse invalid settings before a model is loaded. Numbers of numpy become plain ones."""
        for name in ("budget", "concentration", "min_coverage"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        if not isinstance(self.method, str | None):
            raise CovistError(f"method must be a method's name, got {self.method!r}")
        if self.budget is not None:
            check_budget(self.budget)
        check_coverage(self.min_coverage)
        if self.concentration is not None:
            ConcentrationTracker().freeze(self.concentration)
        if not isinstance(self.constants, CovistConfig | None):
            raise CovistError(f"constants must be a CovistConfig, got {type(self.constants).__name__}")
        if not isinstance(self.calibration, Calibration | None):
            raise CovistError(f"calibration must be a Calibration, got {type(self.calibration).__name__}")

    def options_for(self, method: str) -> dict[str, Any]:
        """Constants and calibration as options of a method that reads them."""
        constants = {"config": self.constants} if self.constants is not None and reads_constants(method) else {}
        calibrated = self.calibration is not None and takes_calibration(method)
        return constants | ({"calibration": self.calibration} if calibrated else {})

    @classmethod
    def of(cls, config: CovistConfig | Setup | str | Path | None) -> Setup:
        """From any value of `config=`: constants only, a setup, the path of a file with either, or None."""
        if isinstance(config, Setup):
            return config
        if config is None or isinstance(config, CovistConfig):
            return cls(constants=config)
        if isinstance(config, str | Path):
            return cls.load(config)
        raise CovistError(f"config must be a CovistConfig, a Setup or the path of a file, got {type(config).__name__}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        constants = None if self.constants is None else self.constants.to_dict()
        return {
            VERSION_KEY: VERSION,
            "method": self.method,
            "budget": self.budget,
            "concentration": self.concentration,
            "constants": constants,
            "min_coverage": self.min_coverage,
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
            "origin": as_json("origin", self.origin),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Setup:
        """From the fields of a file, which may also hold constants only, as `CovistConfig.save` writes them."""
        if not isinstance(values, Mapping):
            raise CovistError(f"expected an object with one value per setting, got {values!r}")
        if VERSION_KEY not in values:
            return cls(constants=CovistConfig.from_dict(values))
        given = {name: value for name, value in values.items() if name != VERSION_KEY}
        if values[VERSION_KEY] != VERSION:
            raise CovistError(f"{VERSION_KEY} is {values[VERSION_KEY]!r}, but this covist reads version {VERSION}")
        if unknown := sorted(set(given) - {one.name for one in fields(cls)}):
            raise CovistError(f"unknown setting {', '.join(unknown)}")
        if given.get("constants") is not None:
            given["constants"] = CovistConfig.from_dict(given["constants"])
        if given.get("calibration") is not None:
            given["calibration"] = Calibration.from_dict(given["calibration"])
        if not isinstance(given.get("origin", {}), dict):
            raise CovistError(f"origin must be an object, got {given['origin']!r}")
        setup = cls(**given)
        if setup.method is not None and not is_vanilla(setup.method):
            create_method(setup.method, **setup.options_for(setup.method))  # refuses an unknown method
        return setup

    def save(self, path: str | Path) -> None:
        """Write the file."""
        save_settings(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Setup:
        """Read a file; any error in it is a `CovistError` of one line."""
        return load_settings(path, cls.from_dict)
