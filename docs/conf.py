"""Configuration of the documentation site: `make docs` builds it into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

import ffo

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "ffo"
author = "the ffo developers"
copyright = "the ffo developers"
version = release = ffo.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "gallery",
    "mathml",
    "plain_docstrings",
    "public_names",
]
exclude_patterns = ["_ext", "figures", "gallery/*.py", "gallery/*.ipynb", "gallery/*.md5", "sg_execution_times.rst"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# Every reference must resolve. Docstrings put code between single backticks: names that are documented become links,
# everything else (an expression, a keyword) is shown as code.
nitpicky = True
default_role = "py:obj"
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    # other packages: their pages cannot be looked up without a network
    ("py:class", r"(torch|np|numpy|cp|cvxpy|jax|enum|collections|typing)\..*|T"),
    # types of the core that appear in signatures
    ("py:class", r"ffo\.(cones|kernels|program)\..*|ffo\.ghost\.oracle\.Way|ffo\.functions\.solvers\.FunctionSolver"),
    ("py:class", r"ffo\.torch\.(base|qp)\.(Found|QPOptions)"),
]

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_param = False  # one entry for `lb, ub: ...`

#: modules of which every public name must appear in the reference
public_modules = ["ffo", "ffo.torch", "ffo.torch.decision", "ffo.jax", "ffo.bilevel", "ffo.errors"]

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("ffo",),
    "reference_url": {"ffo": None},
    "filename_pattern": r"/plot_",
    "within_subsection_order": "gallery.Order",
    "matplotlib_animations": False,
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("gallery.reset",),
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "image_srcset": ["2x"],
    "thumbnail_size": (480, 330),
}

html_theme = "furo"
html_title = f"ffo {version}"
html_static_path = ["_static"]
html_css_files = ["ffo.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
    "navigation_with_keys": True,
}
pygments_dark_style = "github-dark"  # that of the theme underlines imports like links

# asked for by `make linkcheck`, which needs a network
linkcheck_timeout = 20
linkcheck_retries = 2
