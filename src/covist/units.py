"""Numbers formatted for people to read."""

from math import isfinite


def size(count: float) -> str:
    """Bytes as KiB, MiB or GiB."""
    for unit in ("KiB", "MiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.2f} GiB"


def operations(count: float) -> str:
    """Floating-point operations as M, G or T."""
    for limit, unit in ((1e12, "T"), (1e9, "G")):
        if count >= limit:
            return f"{count / limit:.3f} {unit}"
    return f"{count / 1e6:.1f} M"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"


def percent(value: float, digits: int = 1, signed: bool = False) -> str:
    """A figure that is in percent already; a dash where there is none."""
    return f"{value:{'+' if signed else ''}.{digits}f}" if isfinite(value) else "–"


def interval(ends: tuple[float, float], signed: bool = False) -> str:
    return " to ".join(percent(end, signed=signed) for end in ends)


def number(count: float) -> str:
    """A token count; a layer mean may be fractional."""
    return f"{count:g}" if count == int(count) else f"{count:.2f}"


def counted(count: int, noun: str) -> str:
    """`1 token`, `64 tokens`, `1,261 questions`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
