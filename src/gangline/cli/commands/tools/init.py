"""`gangline init`"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from string import Template
from typing import Final

import click

from ...console.output import echo

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")


@click.command(short_help="Write a new project: a pool, its test, a Dockerfile and a compose file.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".", required=False)
@click.option("--pool", metavar="NAME", default="words", show_default=True, help="Name of the pool and of its module.")
@click.option("--debug", is_flag=True, envvar="GANGLINE_DEBUG", hidden=True)
def command(folder: Path, pool: str, debug: bool) -> None:
    """Write a new project into FOLDER: a pool with two tasks, a test that needs no server, a Dockerfile, and a compose
    file with a server, a dispatcher and two workers. Files that exist are left alone, and then nothing is written.

    \b
        gangline init shop --pool images
        cd shop
        gangline dev images:pool
    """
    import keyword

    if not _NAME.fullmatch(pool):
        raise click.UsageError(f"{pool!r} cannot be a pool and a module: use small letters, digits and '_'")
    if keyword.iskeyword(pool) or pool in sys.stdlib_module_names or pool in ("gangline", "pytest"):
        raise click.UsageError(f"{pool!r} cannot be a module: Python or Gangline uses that name; give another --pool")
    files = {
        f"{pool}.py": _POOL,
        f"test_{pool}.py": _TEST,
        "Dockerfile": _DOCKERFILE,
        "compose.yaml": _COMPOSE,
        ".dockerignore": _IGNORED,
    }
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise click.UsageError(f"already in {folder}: {', '.join(there)}: give another folder, or another --pool")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(Template(text).substitute(pool=pool), encoding="utf-8")
            echo(f"wrote  {folder / name}")
    except OSError as error:
        raise click.UsageError(f"cannot write to {folder}: {error.strerror or error}") from error
    here = "" if folder == Path() else f"cd {folder} && "
    echo(f"next   {here}gangline dev {pool}:pool")
    echo(f"then   gangline call {pool}.count text='a b c', in another terminal")
    echo(f"test   {here}pip install pytest && python -m pytest test_{pool}.py")


_POOL: Final = '''\
"""The pool "$pool". Serve it with: gangline dev $pool:pool"""

import asyncio

import gangline

pool = gangline.Pool("$pool", slots=4)


@pool.task(idempotent=True)
async def count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


@pool.task
async def slowly(text: str, pause_s: float = 1.0):
    """Yield the words of a text, with a pause before each."""
    for word in text.split():
        await asyncio.sleep(pause_s)
        yield word
'''

_TEST: Final = '''\
"""The tasks of the pool "$pool", through a whole system in memory: no server needed."""

import asyncio

from gangline.testing import cluster
from $pool import pool


def test_words_are_counted():
    async def body():
        async with cluster(pool) as client:
            assert await client.call("$pool.count", text="a b c") == 3

    asyncio.run(body())


def test_words_come_one_by_one():
    async def body():
        async with cluster(pool) as client:
            stream = client.stream("$pool.slowly", text="a b", pause_s=0)
            assert [word async for word in stream] == ["a", "b"]

    asyncio.run(body())


def test_a_submitted_task_has_a_result():
    async def body():
        async with cluster(pool, dispatcher=True) as client:
            job = await client.submit("$pool.count", text="a b")
            assert await job.result() == 2

    asyncio.run(body())
'''

_DOCKERFILE: Final = """\
# One image for all processes of this project.
# `gangline` is the image that `docker build -t gangline .` builds in a clone of Gangline.
ARG GANGLINE_IMAGE=gangline
FROM $${GANGLINE_IMAGE}
COPY *.py /app/
CMD ["worker", "$pool:pool"]
"""

_COMPOSE: Final = """\
# docker compose up --build --wait
# gangline call $pool.count text='a b c'      (or: nats req gangline.call.$pool.count '{"text": "a b c"}')
# docker compose up -d --scale worker=5
#
# For development: one server without TLS, users and replicas. See "Run in production" in Gangline's documentation.
services:
  nats:
    image: nats:2.15-alpine
    command: ["--jetstream", "--store_dir", "/data", "--http_port", "8222"]
    ports: ["127.0.0.1:4222:4222"]
    volumes: ["nats:/data"]
    healthcheck:
      test: ["CMD", "wget", "-q", "-O", "-", "http://127.0.0.1:8222/healthz"]
      interval: 2s
      retries: 30
  gateway: &gangline
    build: .
    command: ["gateway"]
    environment: {NATS_URL: "nats://nats:4222"}
    depends_on: {nats: {condition: service_healthy}}
    restart: unless-stopped
  coordinator:
    <<: *gangline
    command: ["coordinator"]
  dispatcher:
    <<: *gangline
    command: ["dispatcher"]
  worker:
    <<: *gangline
    command: ["worker", "$pool:pool"]
    deploy: {replicas: 2}
volumes:
  nats: {}
"""

_IGNORED: Final = """\
.git
.venv
__pycache__
"""
