"""Stops the build when a page would load a script or a style from elsewhere."""

import re
from typing import Any

LOADED = re.compile(
    r"""<script[^>]*\bsrc=["']?(?:https?:)?//[^>]*>|<link[^>]*\bstylesheet\b[^>]*\bhref=["']?(?:https?:)?//[^>]*>"""
)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The page as it is, if it needs nothing but this site."""
    found = LOADED.search(output)
    if found:
        raise ValueError(f"page={page.file.src_uri}: loads {found[0]}; keep what it needs in docs/")
    return output
