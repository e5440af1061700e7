# Tailrace: `tailrace worker` by default, and every other command: `docker run tailrace check /etc/tailrace/…`.
# Build it in the repository's root: docker build -t tailrace .

# The Python that the tests run on.
FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/tailrace
COPY constraints.txt ./
COPY distributions distributions
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY connector connector
COPY schemas schemas
COPY topics topics
# Wheels only, except for our own two distributions: nothing is compiled.
RUN /opt/tailrace/bin/pip install --only-binary=:all: --no-binary=tailrace,tailrace-outbox -c constraints.txt \
        ./distributions/outbox '.[mongo,registry,http,faust,rocksdb,archive]' \
    && /opt/tailrace/bin/pip check \
    && /opt/tailrace/bin/pip uninstall --yes pip setuptools \
    && /opt/tailrace/bin/python -m compileall -q /opt/tailrace/lib

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="Tailrace" \
      org.opencontainers.image.description="Outbox tables to Kafka, exactly once and in order." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-log-init --create-home --shell /usr/sbin/nologin tailrace
COPY --from=build /opt/tailrace /opt/tailrace
ENV PATH=/opt/tailrace/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /etc/tailrace
# By number, so that Kubernetes can verify that it is not root.
USER 10001:10001
EXPOSE 8083
# Without a proxy and without further programs. Compose and Kubernetes have their own checks.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import http.client as h, ssl\ndef ask(c):\n  c.request('GET', '/livez'); return c.getresponse().status != 200\ntry: bad = ask(h.HTTPConnection('127.0.0.1', 8083, timeout=2))\nexcept (h.HTTPException, ConnectionResetError): bad = ask(h.HTTPSConnection('127.0.0.1', 8083, timeout=2, context=ssl._create_unverified_context()))\nraise SystemExit(bad)"]
ENTRYPOINT ["tailrace"]
CMD ["worker", "/etc/tailrace/pipelines", "--http", "0.0.0.0:8083"]
