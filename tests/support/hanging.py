"""A function for `system.helper` that no thread could end."""

import re


def for_ever(*_):
    re.match("(a*)*b", "a" * 60)
