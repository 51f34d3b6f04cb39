"""The layers of one device, in step with its races."""

from collections.abc import Iterable, Sequence

from tuner.lookup import Layer, Race
from tuner.lookup.cross_races import span_of
from tuner.lookup.layer import layer_key
from tuner.lookup.layer_rule import layers_of
from tuner.shape import Problem
from tuner.trial import Toolchain


class DeviceLayers:
    """Layers as their rows show them now, and published ones that no stored row shows.

    Only problems with a cross race are remembered. For one thread.
    """

    def __init__(self, current: Toolchain | None) -> None:
        """current: the toolchain that answers are judged by."""
        self._current = current
        self._races: dict[Problem, dict[int, Sequence[Race]]] = {}
        self._shown: dict[Problem, Sequence[Layer]] = {}
        self._published: Sequence[Layer] = ()
        self._due: set[Problem] = set()
        self._changed = False

    def see(self, problem: Problem, races: Sequence[Race]) -> None:
        """The races of a problem are these now."""
        key, m = layer_key(problem), problem.shape.m
        if any(span_of(race.id) for race in races):
            self._races.setdefault(key, {})[m] = races
        elif self._races.get(key, {}).pop(m, None) is None:
            return
        self._due.add(key)

    def publish(self, layers: Iterable[Layer]) -> None:
        """The device serves these now."""
        self._published, self._changed = tuple(layers), True

    def renewed(self) -> list[Layer] | None:
        """All layers, or None if they are as they were when this was last asked."""
        if not self._due and not self._changed:
            return None
        for key in self._due:
            self._shown[key] = layers_of(key, self._races[key], self._current)
        self._due, self._changed = set(), False
        shown = {key for key, layers in self._shown.items() if layers}
        others = [layer for layer in self._published if layer.key not in shown]
        return [*others, *(layer for layers in self._shown.values() for layer in layers)]
