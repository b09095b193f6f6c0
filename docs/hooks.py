"""What mkdocs.yml cannot say of notebooks: their addresses and links, and that they load nothing from other hosts."""

import os
import posixpath
import re

from mkdocs.exceptions import PluginError

# nbconvert adds MathJax and Mermaid, from a host of its own, to every notebook.
SCRIPTS = re.compile(r"<script\b(?:(?!</script>).)*?https?://.*?</script>", re.S)
LINKS = re.compile(r'(?<=href=")(?!\w+:)([^"#]+\.(?:md|ipynb))')


def on_files(files, config):
    """Called by MkDocs with all files: first-run.ipynb would be written over first-run.md."""
    for file in files:
        if file.src_uri.endswith(".ipynb"):
            file.url = file.url.rstrip("/") + "-notebook/"
            file.dest_uri = f"{file.url}index.html"
            file.abs_dest_path = os.path.join(config.site_dir, file.dest_uri)
    return files


def on_page_content(html: str, page, config, files) -> str:
    """Called by MkDocs with the HTML of each page."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html

    def address(link: re.Match) -> str:
        target = files.get_file_from_path(posixpath.join(posixpath.dirname(page.file.src_uri), link[1]))
        if target is None:
            raise PluginError(f"{page.file.src_uri} links to {link[1]}, which does not exist")
        return target.url_relative_to(page.file)

    return LINKS.sub(address, SCRIPTS.sub("", html))
