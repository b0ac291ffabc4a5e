"""A worker that rewrites its registration only when it changes; otherwise `gangline worker`."""

from __future__ import annotations

from gangline.cli import main
from gangline.worker.registration import registrar as registration

if __name__ == "__main__":
    registration.REWRITE_S = registration.REGISTRATION_TTL_S = 3600.0
    main()
