"""The files of a report: Markdown, CSV, figures, and a web page."""

from __future__ import annotations

import os

from gmlp_flax.analysis import charts, drawing
from gmlp_flax.analysis.charts import Chart
from gmlp_flax.io import run_files
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
    text = "".join(f"- {sentence}\n" for sentence in report.sentences())
    files: dict[str, str | bytes] = {
        "table.md": f"{report.markdown()}\n{text}".rstrip() + "\n",
        **{f"{name}.csv": table.csv() for name, table in report.tables.items()},
        "index.html": page.of_report(report, library or page.LIBRARY),
    }
    for name, shown in report.figures.items():
        figure = charts.draw(shown) if isinstance(shown, Chart) else shown
        files |= {f"{name}.{kind}": drawing.content(figure, kind) for kind in drawing.FORMATS}
        if isinstance(shown, Chart):
            files[f"{name}.csv"] = shown.csv()
    for name, content in files.items():
        run_files.write(os.path.join(folder, name), content.encode() if isinstance(content, str) else content)
    if report.interactive and not library:
        page.write_library(folder)
    return os.path.join(folder, "index.html")
