"""Charts as plain data: panels, series, points. `plotting` draws them."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.analysis.looks import Look


class Scale(NamedTuple):
    """An axis of a panel.

    Attributes:
        label: what it shows, with the unit.
        log: whether it is logarithmic.
        backwards: whether it runs backwards.
        whole: whether its values are whole numbers.
    """

    label: str
    log: bool = False
    backwards: bool = False
    whole: bool = False

    def can_show(self, values: Sequence[float]) -> np.ndarray:
        """Which values can be drawn, bool [values]: those that are finite, and positive if the axis
        is logarithmic."""
        array = np.asarray(values, float)
        finite = np.isfinite(array)
        if self.log:
            return finite & (array > 0)
        return finite


@dataclasses.dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        name: in the legend.
        look: colour, marker and dashes.
        x, y: the points.
        low, high: the range of each point over seeds; empty if there is none.
        labels: words at the points; empty for none.
        joined: whether a line joins the points.
        fit: y of a curve fitted to the points, at each x; empty if there is none.
    """

    name: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    labels: Sequence[str] = ()
    joined: bool = True
    fit: Sequence[float] = ()

    def select(self, points: Sequence[int]) -> Series:
        """Only the points with these indices."""
        selected = {}
        for name in ("x", "y", "low", "high", "labels", "fit"):
            column = getattr(self, name)
            if len(column) > 0:
                selected[name] = [column[index] for index in points]
        return dataclasses.replace(self, **selected)


@dataclasses.dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Attributes:
        title: what the panel shows.
        x, y: the axes.
        series: drawn in this order.
        references: (name, y) of horizontal lines.
    """

    title: str
    x: Scale
    y: Scale
    series: Sequence[Series]
    references: Sequence[tuple[str, float]] = ()

    def drawable(self) -> list[Series]:
        """The series without the points that cannot be drawn, as they are not finite, or not
        positive on a logarithmic axis; and without the series that have no other points."""
        kept = []
        for series in self.series:
            points = self._drawable_points(series)
            if len(points):
                kept.append(series.select(points))
        return kept

    def missing(self) -> list[str]:
        """A sentence on each series with points that cannot be drawn."""
        reason = "not finite"
        if self.x.log or self.y.log:
            reason = "not finite and positive"
        sentences = []
        for series in self.series:
            count = len(series.x)
            drawable = self._drawable_points(series)
            lost = count - len(drawable)
            if lost:
                what = f"{lost} of {series.name}'s {count} points"
                sentences.append(f"Not drawn: {what}, {reason}.")
        return sentences

    def _drawable_points(self, series: Series) -> list[int]:
        """The indices of the points that can be drawn."""
        drawable = self.x.can_show(series.x) & self.y.can_show(series.y)
        return np.flatnonzero(drawable).tolist()


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels side by side, and a caption: what the marks mean, and what is not drawn."""

    panels: Sequence[Panel]
    caption: str = ""

    def missing(self) -> str:
        """A sentence for each series with points that cannot be drawn."""
        sentences = []
        for panel in self.panels:
            sentences += panel.missing()
        return " ".join(sentences)

    def csv(self) -> str:
        """Every point with all digits."""
        if len(self.panels) == 1:
            [panel] = self.panels
            head = ("series", "label", panel.x.label, panel.y.label, "lowest", "highest")
            return csv_text([head, *_rows(panel)])
        head = ("panel", "series", "label", "x", "y", "lowest", "highest")
        rows: list[Sequence[Any]] = [head]
        for panel in self.panels:
            for row in _rows(panel):
                rows.append((panel.y.label, *row))
        return csv_text(rows)


def _rows(panel: Panel) -> Iterator[Sequence[Any]]:
    """Each point of a panel as cells: series, label, x, y, lowest, highest."""
    for series in panel.series:
        blank = [""] * len(series.x)
        columns = (
            [series.name] * len(series.x),
            series.labels or blank,
            series.x,
            series.y,
            series.low or blank,
            series.high or blank,
        )
        yield from zip(*columns, strict=True)


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows of cells as CSV; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
