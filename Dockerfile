# The server, without torch: about 240 MB beside Python itself. The built-in model is inside; others are mounted.
#   docker build -t albertkit:0.1.0 . && docker run --rm -p 127.0.0.1:8080:8080 -e ALBERTKIT_SERVE_KEYS=one,two albertkit:0.1.0
#   docker run --rm -p 127.0.0.1:8080:8080 -v ./models:/models:ro albertkit:0.1.0 sentiment=/models/sentiment --no-auth
# It needs API keys, or --no-auth. Names that clients use for it, beside localhost: ALBERTKIT_SERVE_HOSTS.
# The digest names one image for all processors. To take a newer one, pass --build-arg PYTHON_IMAGE=python:3.12-slim@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim@sha256:57cd7c3a7a273101a6485ba99423ee568157882804b1124b4dd04266317710de
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY requirements requirements
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt \
 && python -m venv /venv && /venv/bin/pip install --no-cache-dir --require-hashes -r requirements/serve.txt
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE ./
COPY src src
RUN python -m hatchling build -t wheel && /venv/bin/pip install --no-cache-dir --no-index --no-deps dist/*.whl \
 && /venv/bin/pip uninstall -y pip

FROM ${PYTHON_IMAGE}
RUN useradd --system --uid 10001 --no-create-home albertkit
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 ALBERTKIT_SERVE_HOST=0.0.0.0 ALBERTKIT_SERVE_PORT=8080
USER 10001
EXPOSE 8080
# /health needs no key. SIGTERM lets open requests finish.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['ALBERTKIT_SERVE_PORT']}/health\", timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["albertkit", "serve"]
