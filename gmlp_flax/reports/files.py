"""The files of a report: Markdown, CSV, figures, and a web page."""

from __future__ import annotations

import os

from gmlp_flax.analysis import charts, drawing
from gmlp_flax.analysis.charts import Chart
from gmlp_flax.io import files
from gmlp_flax.reports import page
from gmlp_flax.reports.report import Report


def write(report: Report, folder: str, library: str = "") -> str:
    """Writes table.md, index.html, each table as CSV, each figure as PNG, SVG and PDF, and each chart's numbers as CSV.

    Args:
        report: what is written.
        folder: of the files.
        library: the path, from the folder, of the charts' JavaScript; by default it is written into the folder, if
            there are charts.

    Returns:
        The path of index.html.
    """
    sentences = "".join(f"- {sentence}\n" for sentence in report.sentences())
    texts = {
        "table.md": f"{report.markdown()}\n{sentences}".rstrip() + "\n",
        "index.html": page.of_report(report, library or page.LIBRARY),
        **{f"{name}.csv": table.csv() for name, table in report.tables.items()},
        **{f"{name}.csv": figure.csv() for name, figure in report.figures.items() if isinstance(figure, Chart)},
    }
    content = {name: text.encode() for name, text in texts.items()}
    for name, figure in report.figures.items():
        drawn = charts.draw(figure) if isinstance(figure, Chart) else figure
        content |= {f"{name}.{kind}": drawing.content(drawn, kind) for kind in drawing.FORMATS}
    for name, data in content.items():
        files.write(os.path.join(folder, name), data)
    if report.interactive and not library:
        page.write_library(folder)
    return os.path.join(folder, "index.html")
