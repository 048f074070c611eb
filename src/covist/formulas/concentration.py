"""The running reference of the attention concentration, which adapts u of Eq. 4 over a stream of images."""

import threading
from numbers import Real
from pathlib import Path
from typing import Any

from covist.errors import CovistError
from covist.files import load_settings, save_settings

DECAY = 0.98
WARM_UP = 16
_UPDATING = threading.Lock()  # one for all trackers, which can then be copied


class ConcentrationTracker:
    """Running mean of the attention concentration c, which CoViST's selection uses as its reference.

    It is a plain mean over the first 16 images and exponential with decay 0.98 afterwards. Read it before an image and
    update it after. Once it is frozen to a number, the output for an image no longer depends on earlier images.

    >>> tracker = covist.ConcentrationTracker()
    >>> tracker.freeze(0.05)
    >>> tracker.read()
    0.05
    """

    def __init__(self, decay: float = DECAY, warm_up: int = WARM_UP):
        self.decay, self.warm_up = decay, warm_up
        self.frozen: float | None = None
        self.reset()

    def reset(self) -> None:
        """Forget all images, but keep a frozen value."""
        self.mean, self.samples = 0.0, 0

    def read(self) -> float | None:
        """The reference, or None while it is still warming up."""
        if self.frozen is not None:
            return self.frozen
        return self.mean if self.samples >= self.warm_up else None

    def update(self, concentration: float) -> None:
        """Include one image in the mean; does nothing while frozen."""
        if self.frozen is not None:
            return
        with _UPDATING:
            self.samples += 1
            rate = 1 / self.samples if self.samples <= self.warm_up else 1 - self.decay
            self.mean += rate * (concentration - self.mean)

    def freeze(self, value: float | None) -> None:
        """Fix the reference to `value`; None makes it a running mean again."""
        if value is not None and not (isinstance(value, Real) and 0 <= value <= 1):
            raise CovistError(f"concentration must be a number in [0, 1] or None, got {value!r}")
        self.frozen = value

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("decay", "warm_up", "mean", "samples", "frozen")}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        if not isinstance(values, dict) or set(values) != set(self.state_dict()):
            given = sorted(values) if isinstance(values, dict) else values
            raise CovistError(f"ConcentrationTracker: expected the fields {sorted(self.state_dict())}, got {given}")
        for name, value in values.items():
            setattr(self, name, value)

    def save(self, path: str | Path) -> None:
        """Write the tracker as JSON."""
        save_settings(path, self.state_dict())

    @classmethod
    def load(cls, path: str | Path) -> "ConcentrationTracker":
        """Read a tracker; any error in the file is a `CovistError` of one line."""

        def restored(values: Any) -> "ConcentrationTracker":
            tracker = cls()
            tracker.load_state_dict(values)
            return tracker

        return load_settings(path, restored, "tracker")
