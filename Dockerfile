# The server, without torch: about 240 MB beside Python itself. The built-in model is inside; others are mounted.
#   docker build -t albertkit . && docker run --rm -p 127.0.0.1:8080:8080 albertkit
#   docker run --rm -p 127.0.0.1:8080:8080 -v ./models:/models:ro albertkit sentiment=/models/sentiment
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY src src
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir -c constraints.txt '.[serve]' \
 && /venv/bin/pip uninstall -y pip

FROM python:3.12-slim
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
