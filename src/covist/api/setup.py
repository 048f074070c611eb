"""`covist.json`: one file with all compression settings, for Python, the command line and the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from covist.budget import Budget, Plain, Written, check_cap
from covist.config import CovistConfig
from covist.errors import CovistError
from covist.files import as_json, load_settings, plain, save_settings
from covist.formulas.concentration import ConcentrationTracker
from covist.loading import Loading
from covist.methods.create import create_method, reads_constants, takes_calibration
from covist.methods.grammar import VANILLA, is_vanilla, usual_spelling
from covist.schedule import Calibration, check_coverage

VERSION = 1
"""Version of the file format; a file of another version is refused."""
VERSION_KEY = "covist_settings"


@dataclass(frozen=True, init=False)
class Setup:
    """How images are compressed: a method with all its settings, as saved in `covist.json`.

    None leaves a setting open. Setups are values: they compare, hash, and travel to other processes.

    method: the method's name with its settings, as on the command line
    budget: visual tokens per image: a count, a share, "auto", or "none" for the plain model; or of all images of a
        prompt: "total:2048", "ages:256,128,64"
    concentration: the number to which CoViST's running concentration reference is frozen
    constants: CoViST's constants, if they differ from the paper's
    origin: where the settings come from: data, target, versions, and the model that they were tuned on
    min_coverage: the share of an image that must be covered; an image that is covered less runs uncompressed
    calibration: how many tokens each layer sees, for a method that uses a calibration
    loading: how commands load the model, unless their options say otherwise
    max_visual_tokens: the most visual tokens of a prompt in any layer; images are compressed further to keep to it

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

    method: str | None
    budget: Budget | None
    concentration: float | None
    constants: CovistConfig | None
    origin: dict[str, Any] = field(compare=False)
    min_coverage: float | None
    calibration: Calibration | None
    loading: Loading | None = field(compare=False)
    max_visual_tokens: int | None

    def __init__(
        self,
        method: str | None = None,
        budget: Budget | Written | None = None,
        concentration: float | None = None,
        constants: CovistConfig | None = None,
        origin: dict[str, Any] | None = None,
        min_coverage: float | None = None,
        calibration: Calibration | None = None,
        loading: Loading | None = None,
        max_visual_tokens: int | None = None,
    ) -> None:
        """Refuse invalid settings before a model is loaded. Numbers of numpy become plain ones."""
        concentration, min_coverage = plain(concentration), plain(min_coverage)
        max_visual_tokens = plain(max_visual_tokens)
        if not isinstance(method, str | None):
            raise CovistError(f"method must be a method's name, got {method!r}")
        check_coverage(min_coverage)
        check_cap(max_visual_tokens)
        ConcentrationTracker().freeze(concentration)
        if not isinstance(constants, CovistConfig | None):
            raise CovistError(f"constants must be a CovistConfig, got {type(constants).__name__}")
        if not isinstance(calibration, Calibration | None):
            raise CovistError(f"calibration must be a Calibration, got {type(calibration).__name__}")
        if not isinstance(loading, Loading | None):
            raise CovistError(f"loading must be a Loading, got {type(loading).__name__}")
        values = (
            method,
            None if budget is None else Budget.parse(budget),
            concentration,
            constants,
            {} if origin is None else origin,
            min_coverage,
            calibration,
            loading,
            max_visual_tokens,
        )
        for one, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, one.name, value)

    def __str__(self) -> str:
        """The method and its budget."""
        if self.is_plain:
            return VANILLA
        return " ".join(str(one) for one in (self.method, self.budget) if one is not None)

    @property
    def is_plain(self) -> bool:
        """Whether it leaves the model uncompressed."""
        return isinstance(self.budget, Plain) or (self.method is not None and is_vanilla(self.method))

    def over(self, base: Setup) -> Setup:
        """These settings, with those of `base` for what they leave open.

        >>> str(covist.Setup(budget=32).over(covist.Setup("covist-pro", 64)))
        'covist-pro 32'
        """
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(base, **{name: value for name, value in given.items() if value not in (None, {})})

    def resolved(self, measure: Callable[[], float] | None = None) -> Setup:
        """The settings that take effect: nothing is left open but a budget that the model decides, and nothing is held
        that the method does not read.

        Setups that compress alike are equal then, however they were written, so their requests can share a batch.

        measure: gives the concentration reference to freeze, if the method has one and the setup does not say it

        >>> written = covist.Setup("covist-fixed", 64, constants=covist.CovistConfig())
        >>> covist.Setup(budget="64").resolved() == written.resolved()
        True
        """
        whole = self.over(DEFAULT)
        if whole.is_plain:
            return replace(PLAIN, max_visual_tokens=whole.max_visual_tokens)
        name = usual_spelling(whole.method or DEFAULT_METHOD)
        read, frozen = whole.options_for(name), None
        if create_method(name, **read).tracker is not None:
            frozen = measure() if whole.concentration is None and measure is not None else whole.concentration
        constants = None if read.get("config") == CovistConfig() else read.get("config")
        return Setup(
            name,
            whole.budget,
            frozen,
            constants,
            min_coverage=whole.min_coverage,
            calibration=read.get("calibration"),
            max_visual_tokens=whole.max_visual_tokens,
        )

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
            "budget": None if self.budget is None else self.budget.written,
            "concentration": self.concentration,
            "constants": constants,
            "min_coverage": self.min_coverage,
            "max_visual_tokens": self.max_visual_tokens,
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
            "loading": None if self.loading is None else self.loading.to_dict() or None,
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
        if given.get("loading") is not None:
            given["loading"] = Loading.from_dict(given["loading"])
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


DEFAULT_METHOD = "covist-fixed"
DEFAULT = Setup(DEFAULT_METHOD)
"""What is taken for settings that nobody gives; the default budget is that of the model's family."""
PLAIN = Setup(VANILLA, Plain())
"""The uncompressed model."""
