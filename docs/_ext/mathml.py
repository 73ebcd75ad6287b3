"""Formulas as MathML, which browsers draw themselves: no script, no download, readable without a network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def _formula(node: nodes.Element, block: bool) -> str:
    try:
        return tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        logger.warning("formula %r: %s", node.astext(), error, location=node)
        return f"<code>{node.astext()}</code>"


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_formula(node, block=False))
    raise nodes.SkipNode


def _displayed(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{_formula(node, block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (_inline, None), (_displayed, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
