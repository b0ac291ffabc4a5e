"""The `gangline` command.

Exit codes: 0 done; 1 the task or the operation failed; 2 the request itself is wrong (usage, names, arguments);
3 unavailable, nothing started (no server, no workers, all full); 4 the outcome is unknown, the task may have run;
130 interrupted.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of the console script."""
    try:
        if sys.argv[1:2] == ["health"]:
            from .serving import probe

            if (code := probe.main(sys.argv[2:], os.environ)) is not None:
                raise SystemExit(code)
        # Do not import anything heavy on the way to `--help`: see app.py.
        from .app import gangline

        gangline(prog_name="gangline")
    except KeyboardInterrupt:
        # Ctrl-C before a command has started.
        print("gangline: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
