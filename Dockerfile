# One image for every role: `gangline worker MODULE:POOL`, `gangline gateway`, `gangline call ...`.
#
#   docker build -t gangline .
#   docker run -v ./examples:/app:ro -e NATS_URL=nats://host:4222 gangline worker words:pool
#
# To build an application on it: `FROM gangline`, `COPY` your modules to /app, and use `gangline worker` as the command.

ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS build
# To install from another package index; pip reads these from the environment. Docker passes proxies by itself.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
RUN python -m venv /opt/gangline
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements-dev.txt ./
COPY src src
COPY runtime runtime
COPY schemas schemas
COPY telemetry telemetry
COPY bus bus
COPY worker worker
COPY dispatcher dispatcher
COPY coordinator coordinator
COPY bench/wire bench/wire
# The versions of dependencies that the tests ran with.
RUN sed -E '/^ +(--hash|#)/d; s/ *\\$//' requirements-dev.txt >versions.txt \
  && /opt/gangline/bin/pip install --no-cache-dir --disable-pip-version-check --constraint versions.txt .

FROM python:${PYTHON_VERSION}-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin gangline
COPY --from=build /opt/gangline /opt/gangline
ENV PATH=/opt/gangline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
USER gangline
# SIGTERM drains a worker: it finishes its tasks. A second SIGTERM stops it at once.
STOPSIGNAL SIGTERM
# Checks that the process answers over NATS; for services, not for one-off commands.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["gangline", "health"]
ENTRYPOINT ["gangline"]
CMD ["--help"]
