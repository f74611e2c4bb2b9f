"""The forms that a policy's name can have, without a look at any home."""

from __future__ import annotations

import re

from simic.contracts.names import CHAMPION, MODEL_NAME, REFERENCE_PREFIX

__all__ = ["DIGEST_NAME", "SHORTEST", "VERSION_NAME", "is_policy_name"]

SHORTEST = 8
"""Characters a digest must be named with; fewer digits are a version number."""
VERSION_NAME = re.compile(rf"(?:{MODEL_NAME}/)?([1-9]\d{{0,{SHORTEST - 2}}})")
DIGEST_NAME = re.compile(rf"[0-9a-f]{{{SHORTEST},64}}")


def is_policy_name(text: str) -> bool:
    """Return whether a text is the name of a policy by its form, so that it is never taken for a directory."""
    is_reference = text == CHAMPION or text.startswith(REFERENCE_PREFIX)
    return is_reference or bool(VERSION_NAME.fullmatch(text) or DIGEST_NAME.fullmatch(text))
