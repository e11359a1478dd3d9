"""Where states start. A draw depends on the seed and the parameter's name, on nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from math import pi, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.order import uniform
from bpc.errors import Diagnostic, SpecError
from bpc.ir import State
from bpc.spec.inits import INITS
from bpc.types import format_shape

Reals = NDArray[np.float64]

WRONG_SHAPE = "BPC0219"
NO_FAN = "BPC0220"

_MASTER = "master."


def initial_values(states: Iterable[State], seed: int) -> dict[str, NDArray[Any]]:
    """Starting values by name, in float64 or as below; the device rounds them to each state's type.

    A full-precision copy `master.w` starts as the parameter w before rounding to 16 bits, which
    is by way of the type of the copy: so a step that is skipped leaves both as they were.

    Raises:
        SpecError: an initialiser does not fit its parameter.
    """
    return {state.name: by_way_of_master(state, initial_value(state, seed)) for state in states}


def by_way_of_master(state: State, value: NDArray[Any]) -> NDArray[Any]:
    """The value as the float32 copy of a 16-bit state holds it; that of other states as it is."""
    return value.astype(np.float32) if state.value.dtype.bits == 16 else value


def initial_value(state: State, seed: int) -> Reals:
    """The starting value of one state.

    Raises:
        SpecError: a literal of another shape, or an initialiser that needs what a vector lacks.
    """
    shape = _extents(state)
    options = {**_defaults(state.init.kind), **dict(state.init.options)}
    made = _KINDS[state.init.kind](state, shape, options, _Draws(state.name, seed))
    return np.asarray(made * state.init.gain)


def check_initials(states: Iterable[State]) -> None:
    """Refuse initialisers that do not fit, without drawing anything large.

    Raises:
        SpecError: with every fault.
    """
    faults: list[Diagnostic] = []
    for state in states:
        try:
            _check(state)
        except SpecError as error:
            faults.extend(error.diagnostics)
    if faults:
        raise SpecError(faults)


def _check(state: State) -> None:
    kind = state.init.kind
    if kind == "values":
        initial_value(state, 0)
    elif kind == "orthogonal":
        _as_matrix(state, _extents(state))
    elif kind.startswith(("he", "xavier")):
        options = {**_defaults(kind), **dict(state.init.options)}
        _fan(state, options.get("mode"))


def _extents(state: State) -> tuple[int, ...]:
    found = tuple(dim for dim in state.value.shape if isinstance(dim, int))
    assert len(found) == len(state.value.shape), f"{state.value} grows with the batch"
    return found


def _defaults(kind: str) -> dict[str, Any]:
    schema = INITS.get(kind)
    return {option.name: option.default for option in schema.options} if schema else {}


class _Draws:
    """Random numbers for one parameter."""

    def __init__(self, name: str, seed: int):
        plain = name.removeprefix(_MASTER)
        self._seed = seed
        self._stream = int.from_bytes(hashlib.sha256(plain.encode()).digest()[:8], "little")

    def uniform(self, shape: tuple[int, ...]) -> Reals:
        """Independent draws from [0, 1)."""
        return uniform(self._seed, self._stream, prod(shape)).reshape(shape)

    def normal(self, shape: tuple[int, ...]) -> Reals:
        """Independent draws of mean 0 and variance 1.

        Source: Box and Muller 1958, "A note on the generation of random normal deviates".
        """
        count = prod(shape)
        half = (count + 1) // 2
        draws = uniform(self._seed, self._stream, 2 * half)
        radius = np.sqrt(-2 * np.log(1 - draws[:half]))
        angle = 2 * pi * draws[half:]
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return both[:count].reshape(shape)


Options = Mapping[str, Any]
Kind = Callable[[State, tuple[int, ...], Options, _Draws], Reals]


def _constant(value: float | None) -> Kind:
    """A kind that fills with `value`, or with the option of that name."""

    def fill(state: State, shape: tuple[int, ...], options: Options, draws: _Draws) -> Reals:
        return np.full(shape, options["value"] if value is None else value, dtype=np.float64)

    return fill


def _normal(state: State, shape: tuple[int, ...], options: Options, draws: _Draws) -> Reals:
    return np.asarray(options["mean"] + options["std"] * draws.normal(shape))


def _uniform(state: State, shape: tuple[int, ...], options: Options, draws: _Draws) -> Reals:
    low, high = options["low"], options["high"]
    return np.asarray(low + (high - low) * draws.uniform(shape))


def _scaled(distribution: str | None) -> Kind:
    """Xavier or He; the variance is gain^2 / fan.

    Sources: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward
    neural networks"; He, Zhang, Ren, Sun 2015 (arXiv:1502.01852).
    """

    def draw(state: State, shape: tuple[int, ...], options: Options, draws: _Draws) -> Reals:
        std = options["gain"] / sqrt(_fan(state, options.get("mode")))
        if (distribution or options["distribution"]) == "normal":
            return np.asarray(std * draws.normal(shape))
        return np.asarray(sqrt(3) * std * (2 * draws.uniform(shape) - 1))

    return draw


def _fan(state: State, mode: str | None) -> float:
    """What the variance is divided by: one of the fans, or their mean for Xavier."""
    init = state.init
    fan = getattr(init, mode) if mode else (init.fan_in + init.fan_out) / 2
    missing = mode == "fan_out" and not init.fan_out
    if missing or not fan:
        message = f"{state.name}: {init.kind} needs {mode or 'fans'}, which this tensor lacks"
        help = "use zeros, constant, normal or uniform here"
        raise SpecError.at(NO_FAN, message, state.span, help=help)
    return float(fan)


def _orthogonal(state: State, shape: tuple[int, ...], options: Options, draws: _Draws) -> Reals:
    """Orthonormal rows or columns, whichever are fewer, of [first axis, all others].

    Source: Saxe, McClelland, Ganguli 2013 (arXiv:1312.6120); signs as in Mezzadri 2006
    (arXiv:math-ph/0609050), which makes the draw uniform over orthogonal matrices.
    """
    rows, columns = _as_matrix(state, shape)
    tall, thin = max(rows, columns), min(rows, columns)
    q, r = np.linalg.qr(draws.normal((tall, thin)))
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    matrix = q if rows >= columns else q.T
    return np.asarray(options["gain"] * matrix.reshape(shape))


def _as_matrix(state: State, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        message = f"{state.name}: orthogonal needs at least two axes, found {format_shape(shape)}"
        help = "use zeros, constant, normal or uniform here"
        raise SpecError.at(WRONG_SHAPE, message, state.span, help=help)
    return shape[0], prod(shape[1:])


def _values(state: State, shape: tuple[int, ...], options: Options, draws: _Draws) -> Reals:
    given = np.array(options["values"], dtype=np.float64)
    if given.shape != shape:
        message = (
            f"{state.name}: sizes differ, the tensor is {format_shape(shape)}, "
            f"the values written out are {format_shape(given.shape)}"
        )
        raise SpecError.at(WRONG_SHAPE, message, state.span)
    return given


_KINDS: Mapping[str, Kind] = {
    "zeros": _constant(0.0),
    "ones": _constant(1.0),
    "constant": _constant(None),
    "normal": _normal,
    "uniform": _uniform,
    "xavier": _scaled(None),
    "xavier_uniform": _scaled("uniform"),
    "xavier_normal": _scaled("normal"),
    "he": _scaled(None),
    "he_uniform": _scaled("uniform"),
    "he_normal": _scaled("normal"),
    "orthogonal": _orthogonal,
    "values": _values,
}
assert set(_KINDS) == {*INITS, "values"}, "every initialiser of the language has a row here"
