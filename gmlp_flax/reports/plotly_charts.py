"""Charts as Plotly draws them on a page: values under the mouse, series that a click on their name hides."""

from __future__ import annotations

import html as html_lib
from collections.abc import Iterator
from typing import Any

from gmlp_flax.analysis.charts import Panel, Scale, Series
from gmlp_flax.analysis.drawing import GREY, plain
from gmlp_flax.reports.table import shown

SYMBOLS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross"}
SYMBOLS |= {".": "circle", "X": "x", "*": "star"}
HEIGHT = 430  # pixels of a panel
LARGE = 1e4  # numbers from here on are written with k and M


def html(panel: Panel, name: str) -> str:
    """A panel as an element of a page that has loaded Plotly; `name` names the element and its file as PNG."""
    from plotly import io

    buttons = [["toImage", "resetScale2d"]]  # none that sends data to a host
    config = {"displaylogo": False, "modeBarButtons": buttons, "toImageButtonOptions": {"filename": name, "scale": 2}}
    options: dict[str, Any] = {"full_html": False, "include_plotlyjs": False, "validate": False, "div_id": name}
    title = f"<h3>{html_lib.escape(panel.title)}</h3>"
    return f'<div class="panel">{title}{io.to_html(figure(panel), config=config, **options)}</div>'


def figure(panel: Panel) -> dict[str, Any]:
    """A panel's traces and layout, in Plotly's words."""
    panel = panel.drawable()
    traces = [trace for series in panel.series for trace in _traces(series, panel.x.label)]
    x = [value for series in panel.series for value in series.x]
    for name, y in panel.references if x else ():
        line = {"color": GREY, "width": 1.2, "dash": "dot"}
        traces.append({"x": [min(x), max(x)], "y": [y, y], "mode": "lines", "name": name, "line": line})
    y = [value for series in panel.series for value in (*series.y, *series.high)]
    layout = {
        "height": HEIGHT,
        "margin": {"l": 62, "r": 12, "t": 30, "b": 46},
        "xaxis": _axis(panel.x, x),
        "yaxis": _axis(panel.y, y),
        "hovermode": "closest",
        "plot_bgcolor": "white",
        "font": {"family": "system-ui, sans-serif", "color": "#1f2328"},
        "hoverlabel": {"bgcolor": "white"},
        "legend": {"orientation": "h", "y": -0.16},
        "showlegend": len(panel.series) + len(panel.references) > 1,
    }
    return {"data": traces, "layout": layout}


def _axis(scale: Scale, values: list[float]) -> dict[str, Any]:
    return {
        "title": {"text": scale.label, "standoff": 6},
        "type": "log" if scale.log else "linear",
        "autorange": "reversed" if scale.backwards else True,
        "tickformat": "~s" if max(values, default=0) >= LARGE else "~g",
        "gridcolor": "#e8ebee",
        "linecolor": "#57606a",
        "ticks": "outside",
        "zeroline": False,
    }


def _traces(series: Series, x_label: str) -> Iterator[dict[str, Any]]:
    """One to three traces, which are hidden and shown together: the band of seeds, the fitted curve, the points."""
    colour, symbol, dashes = series.look
    x, y, low, high = (list(map(float, values)) for values in (series.x, series.y, series.low, series.high))
    behind = {"legendgroup": series.name, "showlegend": False, "hoverinfo": "skip", "mode": "lines"}
    if low and series.band:
        shape = {"x": x + x[::-1], "y": high + low[::-1], "fill": "toself", "fillcolor": f"{colour}26"}
        yield behind | shape | {"line": {"width": 0}}
    if series.fit:
        curve = {"x": x, "y": list(map(float, series.fit))}
        yield behind | curve | {"line": {"color": colour, "width": 1.3, "dash": "dash"}}
    points: dict[str, Any] = {
        "x": x,
        "y": y,
        "name": series.name,
        "legendgroup": series.name,
        "mode": ("lines+" if series.joined else "") + "markers" + ("+text" if series.labels else ""),
        "line": {"color": colour, "dash": ",".join(f"{2 * length}px" for length in dashes) or "solid"},
        "marker": {"color": colour, "size": 7, "symbol": SYMBOLS[symbol], "line": {"color": "white", "width": 0.7}},
        "hoverinfo": "text",
        "hovertext": [_hover_text(series, index, x_label) for index in range(len(x))],
    }
    if series.labels:
        points |= {"text": list(series.labels), "textposition": "top center", "cliponaxis": False}
        points["textfont"] = {"size": 10, "color": series.look.text}
    if low and not series.band:
        up, down = ([abs(one - two) for one, two in zip(side, y, strict=True)] for side in (high, low))
        bars = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 0}
        points["error_y"] = bars | {"color": colour}
    yield points


def _hover_text(series: Series, index: int, x_label: str) -> str:
    name = f"{series.name} {series.labels[index]}" if series.labels else series.name
    value = shown(float(series.y[index]))
    if series.low and series.low[index] != series.high[index]:
        value += f" ({shown(float(series.low[index]))} to {shown(float(series.high[index]))})"
    return f"<b>{html_lib.escape(name)}</b><br>{value}<br>{plain(series.x[index])} {html_lib.escape(x_label)}"
