"""``python -m tools.reference``: write the tables anew, and say which pages have changed."""

import sys

from tools.reference.pages import stale

for page, text in stale().items():
    page.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{page}\n")
