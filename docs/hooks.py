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

    def code(found: re.Match) -> str:
        flags = FLAG.sub(r'<span class="flag">\g<0></span>', found[0])
        return (
            TEXT.sub(lambda words: NAME.sub("<wbr>", words[0]), flags)
            if flags.startswith("<code>")
            else flags
        )

    def whole(found: re.Match) -> str:
        words = LONG.sub(lambda word: NAME.sub("<wbr>", word[0]), found[0])
        return NUMBER.sub(r'<span class="flag">\g<0></span>', words)

    parts = re.split(f"({CODE.pattern})", html, flags=re.S)
    return "".join(
        CODE.sub(code, part) if number % 2 else TEXT.sub(whole, part)
        for number, part in enumerate(parts)
    )


def on_page_content(html: str, page, config, files) -> str:
    """Called by MkDocs with the HTML of each page."""
    if not page.file.src_uri.endswith(".ipynb"):
        folder = os.path.join(config.docs_dir, "results", "figures")
        return TIPPED.sub(
            lambda image: inlined(os.path.join(folder, image[2]), image[1], image[3]),
            in_lines(html),
        )

    def address(link: re.Match) -> str:
        target = files.get_file_from_path(
            posixpath.join(posixpath.dirname(page.file.src_uri), link[1])
        )
        if target is None:
            raise PluginError(f"{page.file.src_uri} links to {link[1]}, which does not exist")
        return target.url_relative_to(page.file)

    return LINKS.sub(address, SCRIPTS.sub("", html))
