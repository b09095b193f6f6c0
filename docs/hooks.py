"""Hooks for what mkdocs.yml cannot say. They choose where lines may wrap, put figures with named
points into the HTML of their page, and fix the addresses and links of notebooks, which must load
nothing from other hosts."""

import os
import posixpath
import re

from mkdocs.exceptions import PluginError

# nbconvert adds MathJax and Mermaid, from a host of its own, to every notebook.
SCRIPTS = re.compile(r"<script\b(?:(?!</script>).)*?https?://.*?</script>", re.S)
CODE = re.compile(r"<code\b.*?</code>", re.S)
FLAG = re.compile(r"(?<![\w-])--\w[\w.-]*")  # browsers would wrap a line after its hyphens
# where a long name wraps, in the tables of a narrow screen
NAME = re.compile(r"(?<=\w[._=:])(?=\w)")
LONG = re.compile(r"[\w.:]{20,}")
# browsers would wrap a line within these: 9 %, 18 M, 3e-07, n = 1,024
NUMBER = re.compile(r"\d[\d.]*(?: %| M\b|e-\d+)|\b[a-z] = \d(?:[\d.,]*\d)?")
TEXT = re.compile(r">[^<]+<")
# A figure of docs/results whose points have tips, for a light or a dark page.
TIPPED = re.compile(
    r'<img alt="([^"]*)" src="[^"]*?/(which-mixer-[\w-]+\.svg)#gh-(light|dark)-mode-only" */?>'
)
WHOLE = r'<span class="flag">\g<0></span>'  # what a match becomes that must not wrap
LINKS = re.compile(r'(?<=href=")(?!\w+:)([^"#]+\.(?:md|ipynb))')


def on_files(files, config):
    """Called by MkDocs with all files: first-run.ipynb would be written over first-run.md."""
    for file in files:
        if file.src_uri.endswith(".ipynb"):
            file.url = file.url.rstrip("/") + "-notebook/"
            file.dest_uri = f"{file.url}index.html"
            file.abs_dest_path = os.path.join(config.site_dir, file.dest_uri)
    return files


def inlined(path: str, words: str, mode: str) -> str:
    """An SVG file as a part of a page that is seen in one mode."""
    with open(path) as file:
        return f'<span class="figure-{mode}" role="group" aria-label="{words}">{file.read()}</span>'


def in_lines(html: str) -> str:
    """The HTML of a page with its flags and numbers whole, and long names that may wrap."""

    def breakable(match: re.Match) -> str:
        return NAME.sub("<wbr>", match[0])

    def code(match: re.Match) -> str:
        flags = FLAG.sub(WHOLE, match[0])
        if not flags.startswith("<code>"):
            return flags
        return TEXT.sub(breakable, flags)

    def prose(match: re.Match) -> str:
        words = LONG.sub(breakable, match[0])
        return NUMBER.sub(WHOLE, words)

    changed = []
    parts = re.split(f"({CODE.pattern})", html, flags=re.S)
    for number, part in enumerate(parts):
        is_code = number % 2 == 1
        changed.append(CODE.sub(code, part) if is_code else TEXT.sub(prose, part))
    return "".join(changed)


def on_page_content(html: str, page, config, files) -> str:
    """Called by MkDocs with the HTML of each page."""
    if page.file.src_uri.endswith(".ipynb"):
        return notebook_content(html, page, files)
    folder = os.path.join(config.docs_dir, "results", "figures")

    def figure(image: re.Match) -> str:
        words, name, mode = image.groups()
        path = os.path.join(folder, name)
        return inlined(path, words, mode)

    return TIPPED.sub(figure, in_lines(html))


def notebook_content(html: str, page, files) -> str:
    """The HTML of a notebook without scripts of other hosts, and with the addresses of pages in its
    links."""
    source = page.file.src_uri
    folder = posixpath.dirname(source)

    def address(link: re.Match) -> str:
        path = posixpath.join(folder, link[1])
        target = files.get_file_from_path(path)
        if target is None:
            raise PluginError(f"{source} links to {link[1]}, which does not exist")
        return target.url_relative_to(page.file)

    without_scripts = SCRIPTS.sub("", html)
    return LINKS.sub(address, without_scripts)
