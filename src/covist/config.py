"""Every constant of CoViST: a readable name, its symbol, its equation and its allowed range."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from covist.errors import CovistError
from covist.files import as_tuples, load_settings, save_settings

COVERAGE_RESERVE = 0.05


class _Part:
    """Fields of one part of CoViST; a method without that part does not read them."""

    def __init__(self, name: str):
        self.name = name

    def documented(self, default: Any, doc: str, **metadata: Any) -> Any:
        return field(default=default, metadata={"doc": doc, "part": self.name, **metadata})

    def number(self, default: float, doc: str, low: float = 0.0, high: float = float("inf")) -> Any:
        """A numeric constant with its documentation and the closed range that it must lie in."""
        return self.documented(default, doc, range=(low, high))

    def choice(self, default: Any, doc: str, *choices: Any) -> Any:
        return self.documented(default, doc, choices=choices)

    def switch(self, doc: str) -> Any:
        return self.choice(True, doc, True, False)


_ALL, _EVIDENCE, _SELECTION = _Part("everything"), _Part("evidence"), _Part("selection")
_COMPOSITION, _ATTENTION = _Part("composition"), _Part("attention")
_POSITIONS, _PROGRESS = _Part("positions"), _Part("progressive execution")


@dataclass(frozen=True)
class CovistConfig:
    """The constants of CoViST. The defaults are the paper's main configuration, the same for all models.

    `CovistConfig.describe()` lists every field with its default and its meaning.

    >>> config = covist.CovistConfig(weight_limit=64)
    >>> config.save("constants.json")
    >>> covist.CovistConfig.load("constants.json") == config
    True
    """

    epsilon: float = _ALL.number(1e-8, "small constant in every denominator", 1e-12, 1e-3)

    # Evidence and coverage (Eqs. 3-5)
    evidence_exponent: float = _SELECTION.number(1.5, "beta, Eq. 4: exponent that sharpens the evidence")
    uniform_coefficients: tuple[tuple[int, float], ...] = _SELECTION.documented(
        ((64, 0.40), (128, 0.30), (192, 0.25)), "u, Eq. 4: (count, coefficient) knots, linear between, flat outside"
    )
    uniform_multiplier: float = _SELECTION.number(1.0, "factor on u, for the sensitivity study")
    uniform_ceiling: float = _SELECTION.number(
        0.60, "largest u after adapting to the attention's concentration", 0.0, 1.0
    )
    instruction_weight: float = _EVIDENCE.number(
        0.30, "lambda_max, Eq. 3: largest share of the instruction residual", 0.0, 1.0
    )
    instruction_weight_first_layer: float = _EVIDENCE.number(0.15, "lambda_max on the first-layer route", 0.0, 1.0)
    instruction_sign: int = _EVIDENCE.choice(-1, "sign of the text-patch cosine; -1 is the paper's convention", -1, 1)
    selectivity_scale: float = _EVIDENCE.number(
        0.10, "sigma_0, Eq. 3: selectivity at which lambda_max is reached", 1e-6, 1.0
    )
    regions: int = _SELECTION.number(16, "N_r: number of regions that share the coverage weights", 1)
    region_uniform: float = _SELECTION.number(0.10, "share of the regional weight that is spread evenly", 0.0, 1.0)

    # Protected tokens
    core_base: float = _SELECTION.number(0.25, "protected core: fraction of the count at concentration 0", 0.0, 1.0)
    core_slope: float = _SELECTION.number(
        0.45, "protected core: added fraction per square root of the concentration", 0.0, 1.0
    )
    anchor_selectivity: float = _SELECTION.number(
        0.05, "selectivity below which an instruction gets no anchors", 0.0, 1.0
    )
    anchor_fraction: float = _SELECTION.number(0.25, "anchors: at most this fraction of the count", 0.0, 1.0)
    anchor_limit: int = _SELECTION.number(24, "anchors: at most this many")
    anchor_novelty: float = _SELECTION.number(0.20, "novelty above which an added anchor counts as novel", 0.0, 1.0)
    anchor_redundancy: float = _SELECTION.number(
        0.95, "similarity to a kept anchor at which a candidate is skipped", 0.0, 1.0
    )
    reserve: float = _SELECTION.number(COVERAGE_RESERVE, "rho_r: fraction kept for the largest coverage gaps", 0.0, 1.0)

    # Composition (Eqs. 6-8)
    transfer_exponent: float = _COMPOSITION.number(2.0, "gamma, Eq. 7: exponent of the similarity in the transfer")
    weight_limit: float = _COMPOSITION.number(8.0, "m_max, Eq. 7: largest weight of a representative", 1.0)
    content_step: float = _COMPOSITION.number(0.15, "alpha, Eq. 8: step towards the centroid of the removed tokens")
    content_confidence: float = _COMPOSITION.number(
        0.75, "tau, Eq. 8: confidence below which a token gives no content", 0.0, 1.0
    )

    # Attention (Eqs. 9, 10)
    gain_range: tuple[float, float] = _ATTENTION.documented(
        (0.6, 1.4), "g_min and g_max, Eq. 10: range of the head gains"
    )
    first_stage_gain: float = _PROGRESS.number(
        0.8, "u_l, Eq. 9: strategy gain of pro before its first internal reduction"
    )

    # Progressive execution
    stage_depths: tuple[float, float] = _PROGRESS.documented(
        (14 / 32, 24 / 32), "depths of the internal reductions, as fractions of the layer count"
    )
    first_stage_ratio: float = _PROGRESS.number(1.5, "K1 / K: count of the first stage", 1.0)
    last_stage_ratio: float = _PROGRESS.number(0.25, "K3 / K: count of the last stage", 0.0, 1.0)
    coordinate_quota: float = _PROGRESS.number(0.10, "internal selection: fraction for coordinate tokens", 0.0, 1.0)
    spatial_quota: float = _PROGRESS.number(
        0.125, "internal selection: fraction for stratified spatial tokens", 0.0, 1.0
    )
    coordinate_rule: Literal["rope", "grid"] = _PROGRESS.choice(
        "rope", "coordinate tokens by rotary index (rope) or by normalised image coordinates (grid)", "rope", "grid"
    )

    # Switches of the paper's studies
    contributions: bool = _COMPOSITION.switch("compose the weights (Eq. 7); off: weights stay as inherited")
    content: bool = _COMPOSITION.switch("compose the features (Eq. 8); off: features stay as they are")
    attention: bool = _ATTENTION.switch("add the attention bias (Eq. 9); off: the bias is zero")
    head_gains: bool = _ATTENTION.switch("head-dependent gains (Eq. 10); off: every gain is one")
    distance: bool = _ATTENTION.switch("distance factor of Eq. 9; off: the bias is the weight alone")
    position_span: int | Literal["rule"] | None = _POSITIONS.documented(
        None, 'positions of the image: None = the original span, "rule" = min(N, round(4.5 K)), or a number'
    )
    inheritance: bool = _PROGRESS.switch(
        "internal reductions of pro inherit the state; off: they start from ordinary tokens"
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value = as_tuples(getattr(self, item.name))  # JSON and users write lists, numpy arrays
            object.__setattr__(self, item.name, value)
            _check_field(item.name, value, item.metadata)
        _check_structured(self)

    @classmethod
    def cumulative_row(cls, letter: str) -> "CovistConfig":
        """The constants of a row, "a" to "h", of the paper's cumulative study; "g" and "h" are for CoViST-Pro."""
        if letter not in tuple("abcdefgh"):
            raise CovistError(f"CovistConfig.cumulative_row: letter must be one of a to h, got {letter!r}")
        if letter in "gh":
            return cls(inheritance=letter == "h")
        return cls(
            contributions=letter >= "b",
            reserve=COVERAGE_RESERVE if letter >= "c" else 0.0,
            head_gains=letter >= "d",
            content=letter >= "e",
            position_span=None if letter >= "f" else "rule",
        )

    def replace(self, **changes: Any) -> "CovistConfig":
        """A copy with some fields changed, checked like a new one."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "CovistConfig":
        if not isinstance(values, Mapping):
            raise CovistError(f"CovistConfig: expected an object with one value per field, got {values!r}")
        if "strategy" in values:
            raise CovistError("CovistConfig holds constants only; choose fixed or pro with strategy= or method=")
        unknown = sorted(set(values) - {item.name for item in fields(cls)})
        if unknown:
            raise CovistError(f"CovistConfig: unknown field {', '.join(unknown)}; CovistConfig.describe() lists all")
        return cls(**values)

    def save(self, path: str | Path) -> None:
        """Write the configuration as JSON."""
        save_settings(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> "CovistConfig":
        """Read a configuration; any error in the file is a `CovistError` of one line."""
        return load_settings(path, cls.from_dict)

    @classmethod
    def fields_of(cls, parts: Iterable[str]) -> list[str]:
        """Names of the fields that a method with these parts reads."""
        return [name for name, part in cls.parts().items() if part in {_ALL.name, *parts}]

    @classmethod
    def parts(cls) -> dict[str, str]:
        """Field -> the part of the method that reads it."""
        return {item.name: item.metadata["part"] for item in fields(cls)}

    @classmethod
    def describe(cls) -> str:
        """One line per field: name, default and meaning."""
        return "\n".join(f"{item.name} = {item.default!r}: {item.metadata['doc']}" for item in fields(cls))


def _reject(name: str, value: Any, allowed: str) -> None:
    raise CovistError(f"CovistConfig.{name} must be {allowed}, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value))


def _are_knots(value: Any) -> bool:
    if not isinstance(value, tuple) or not value or not all(map(_is_pair, value)):
        return False
    counts = [count for count, _ in value]
    return sorted(set(counts)) == counts and all(0 <= coefficient <= 1 for _, coefficient in value)


def _check_field(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    if "choices" in metadata and not any(value == c and type(value) is type(c) for c in metadata["choices"]):
        _reject(name, value, "one of " + ", ".join(repr(choice) for choice in metadata["choices"]))
    if "range" in metadata:
        low, high = metadata["range"]
        if not _is_number(value) or not low <= value <= high:
            unbounded = math.isinf(high)
            _reject(name, value, f"a finite number of at least {low:g}" if unbounded else f"in [{low:g}, {high:g}]")


def _check_structured(config: CovistConfig) -> None:
    """Check the fields that are more than a number in a range."""
    for name in ("regions", "anchor_limit"):
        if not isinstance(getattr(config, name), int):
            _reject(name, getattr(config, name), "an integer")
    if not _are_knots(config.uniform_coefficients):
        allowed = "(count, coefficient in [0, 1]) pairs with increasing counts"
        _reject("uniform_coefficients", config.uniform_coefficients, allowed)
    gains, depths = config.gain_range, config.stage_depths
    if not _is_pair(gains) or not 0 <= gains[0] <= gains[1]:
        _reject("gain_range", gains, "two non-negative numbers, the smaller one first")
    if not _is_pair(depths) or not 0 < depths[0] < depths[1] < 1:
        _reject("stage_depths", depths, "two increasing fractions in (0, 1)")
    span = config.position_span
    if span is not None and span != "rule" and (not _is_number(span) or span != int(span) or span < 1):
        _reject("position_span", span, 'None, "rule" or a positive integer')
