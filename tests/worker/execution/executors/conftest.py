from __future__ import annotations

import sys

# Stands in for asyncio's eager tasks on Python 3.11. Newer Pythons never use it, and it does not work on all of them.
collect_ignore = ["test_eager_backport.py"] if sys.version_info >= (3, 12) else []
