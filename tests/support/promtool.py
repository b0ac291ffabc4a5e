"""Prometheus's tool that tests expressions and rules, if there is one."""

from __future__ import annotations

import os
import shutil
from typing import Final

PROMTOOL: Final = os.environ.get("PROMTOOL") or shutil.which("promtool") or ""
"""Its path; empty: there is none."""
GET_PROMTOOL: Final = (
    "no promtool: install it, or set PROMTOOL to its path. From Prometheus's source, "
    "`GOWORK=off go build -tags remove_all_sd ./cmd/promtool` builds it without the parts that take longest"
)
