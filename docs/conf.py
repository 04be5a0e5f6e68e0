"""Settings of the documentation site, which `make site` builds with Sphinx.

The source folder is the repository itself, so that a link between two files leads to the same
place on the site as in a checkout. Nothing is fetched, neither to build a page nor to read it.
"""

import functools
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from typer.main import get_command

import equicolor
from equicolor.cli.app import app as cli

# Self-contained pages that `make site` makes with a notebook; whatever is there gets shown.
PAGES = Path(__file__).parents[1] / "build" / "notebook"

# What a reader wants, in the order in which it is wanted: the list beside every page.
CONTENTS = {
    "Start": ["docs/install", "docs/examples", "docs/commands", "examples/*"],
    "Measure": ["docs/real-images", "docs/analysis"],
    "Fix": [
        "docs/which-network",
        "docs/layers",
        "docs/networks",
        "docs/space",
        "docs/convert",
        "docs/canonicalize",
    ],
    "Ship": ["docs/ship"],
    "Results": ["docs/colormnist", "docs/experiments", "docs/experiments/*", "docs/speed"],
    "Reference": ["docs/api", "docs/math", "docs/architecture", "benchmarks/README"],
    "Project": ["CONTRIBUTING", "CHANGELOG"],
}

# Public names that autodoc leaves out: a class is described once, where it belongs, and of data
# that a package takes from its files the comments are not seen.
LEFT_OUT = {
    "equicolor": {"py:class:: HueGroup": "See :class:`equicolor.groups.HueGroup`."},
    "equicolor.evaluation": {
        "py:data:: ACTIONS": "Names of everything that a sweep can do to images.",
        "py:data:: HUE_ACTIONS": "Names of the actions that shift hues.",
    },
    "equicolor.data": {"py:data:: DATASETS": "The datasets by name."},
}

project = "equicolor"
author = "The equicolor authors"
version = release = equicolor.__version__
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    "docs/**",
    "examples/*.ipynb",
]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]

myst_heading_anchors = 4
smartquotes_action = "D"  # dashes alone
# Colours and sizes come from the theme: a page also has to be read in the dark.
html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_title = "equicolor"
html_copy_source = False
html_math_renderer = "mathml"
pygments_style = "friendly"
pygments_dark_style = "monokai"

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "special-members": "__version__",
}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autosummary_ignore_module_all = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = napoleon_attr_annotations = False  # signatures have the types

# Names that the package finds on demand are not in its namespace, where autodoc looks.
vars(equicolor).update({name: getattr(equicolor, name) for name in equicolor.__all__})

nitpicky = True  # what is referred to must exist, see known_elsewhere
nitpick_ignore_regex = [
    ("py:class", "Image"),  # Pillow's, imported for type checkers alone
    ("py:class", r".*\[.*"),  # halves of a type in a signature with a default_factory
]


def known_elsewhere(app: Sphinx, env: Any, node: Any, contnode: nodes.Node) -> nodes.Node | None:
    """Leave a reference without a link if it names something that the site does not describe.

    That may be private, or belong to another package, whose list of names would have to be
    fetched. A name that is nowhere is an error.
    """
    path = node["reftarget"].split(".")
    scopes = [(module, path) for module in own_modules(len(sys.modules))]
    for length in range(1, len(path) + 1):
        scopes.append((sys.modules.get(".".join(path[:length])), path[length:]))
    for scope, names in scopes:
        if functools.reduce(lambda found, name: getattr(found, name, None), names, scope):
            return contnode
    return None


@functools.lru_cache(1)
def own_modules(imported: int) -> list[Any]:
    """Modules of the package; looked for anew where more modules were imported."""
    return [module for name, module in sys.modules.items() if name[:9] == "equicolor"]


def keep_colon(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from taking what stands before a colon for the type of an attribute."""
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]  # an empty comment


def skip_second(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Describe a thing once: a class where it belongs, a field where its class describes it."""
    twin = name == "HueGroup" and app.env.docname == "docs/api/equicolor"
    field = type(obj).__name__ == "_tuplegetter"  # "Alias for field number 0"
    return True if twin or field else None


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Give the first page the list of all pages, which would be in the way on GitHub."""
    for caption, pages in CONTENTS.items() if docname == root_doc else ():
        lines = ["```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", ""]
        source[0] += "\n".join(["", *lines, *(f"/{page}" for page in pages), "```", ""])


def add_options(app: Sphinx, docname: str, source: list[str]) -> None:
    """Give the page of the commands what ``--help`` prints."""
    if docname == "docs/commands":
        source[0] += "".join(describe_command(get_command(cli), "equicolor"))


def describe_command(command: Any, name: str) -> Iterator[str]:
    """Sections of a command, or of all commands of a group: its help, and a table of options."""
    context = command.context_class(command, info_name=name)
    if name != "equicolor":
        records = [param.get_help_record(context) for param in command.get_params(context)]
        options = [record for record in records if record and record[0] != "--help"]
        yield f"\n## {name}\n\n{as_code(command.help)}\n\n"
        if options:
            yield "| option | what it does |\n|---|---|\n"
        for option, text in options:
            yield f"| `{option}` | {as_code(text.replace('|', '/'))} |\n"
    for child, subcommand in getattr(command, "commands", {}).items():
        yield from describe_command(subcommand, f"{name} {child}")


def as_code(text: str) -> str:
    """Mark options in a text as code, where they are not: two hyphens would become a dash."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"(--[a-z-]+)", r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)


def add_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Show the interactive pages on the page of the examples."""
    for page in PAGES.glob("*-interactive.html") if docname == "docs/examples" else ():
        frame = f'<iframe src="../pages/{page.name}" title="{page.stem}" class="page"></iframe>'
        link = f'<p><a href="../pages/{page.name}">The same page by itself</a></p>'
        source[0] += f"\n```{{raw}} html\n{frame}\n{link}\n```\n"


def add_left_out(app: Sphinx, docname: str, source: list[str]) -> None:
    """Describe the public names that autodoc leaves out of the page of a module."""
    module = docname.removeprefix("docs/api/")
    for directive, text in LEFT_OUT.get(module, {}).items():
        source[0] += f"\n\n.. {directive}\n   :module: {module}\n\n   {text}\n"


def show_output(output: dict[str, Any]) -> str:
    """What a cell of a notebook printed, or a figure that it drew, as Markdown."""
    if output["output_type"] == "stream":
        return f"```text\n{output['text']}```"
    picture = f"data:image/png;base64,{output['data']['image/png']}"
    return f'```{{raw}} html\n<p><img src="{picture}" alt="Figure of the code above"></p>\n```'


class NotebookParser(MystParser):
    """Notebooks as pages: text, Python and commands, and outputs where `make site` made some."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the cells, joined to one Markdown text."""
        parts, executed = [], PAGES / Path(document["source"]).name
        if executed.exists():
            inputstring = executed.read_text()
        for cell in json.loads(inputstring)["cells"]:
            text = "".join(cell["source"])
            language = "sh" if text.startswith("!") else "python"
            code = f"```{language}\n{text.removeprefix('!')}\n```"
            parts.append(code if cell["cell_type"] == "code" else text)
            parts += map(show_output, cell.get("outputs", ()))
        parts.append(f"Download the notebook: {{download}}`{Path(document['source']).name}`")
        super().parse("\n\n".join(parts), document)


def visit_math(self: Any, node: nodes.Node) -> None:
    """Write a formula as MathML, which browsers draw without a script."""
    formula = tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block))
    self.body.append(formula)
    raise nodes.SkipNode


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Let the folder of the site open on its first page, and put interactive pages in it."""
    if exception is None and app.builder.format == "html":
        out = Path(app.outdir)
        (out / "index.html").write_text((out / f"{root_doc}.html").read_text())
        (out / "pages").mkdir(exist_ok=True)
        for page in PAGES.glob("*.html"):
            shutil.copy(page, out / "pages")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what is above."""
    app.connect("source-read", add_contents)
    app.connect("source-read", add_options)
    app.connect("source-read", add_left_out)
    app.connect("source-read", add_pages)
    app.connect("missing-reference", known_elsewhere)
    app.connect("autodoc-process-docstring", keep_colon, priority=400)  # napoleon has 500
    app.connect("autodoc-skip-member", skip_second)
    app.connect("build-finished", finish)
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    return {"parallel_read_safe": True}
