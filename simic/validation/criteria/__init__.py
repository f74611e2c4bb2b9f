"""One module per criterion of the gate: ``NAME`` equals the file name, ``SUMMARY`` is one line of help.

``judge`` takes a ``Case`` and yields the lines of a decision, none where the criterion does not apply. ``ORDER`` is the
criterion's place in decisions and tables. Other packages add criteria through the entry-point group ``simic.criteria``.
"""

from simic.runtime.plugin_folder import PluginFolder

__all__ = ["CRITERIA"]

CRITERIA = PluginFolder(
    "criterion", "simic.validation.criteria", "simic.criteria", ("NAME", "SUMMARY", "ORDER", "judge")
)
