# The page and the endpoint: docker build -t lantern . && docker run -p 8000:8000 lantern
# JAX for NVIDIA GPUs: docker build --build-arg JAX="jax[cuda13]" -t lantern . && docker run --gpus all -p 8000:8000 lantern
FROM python:3.13-slim AS built
ARG JAX=jax
WORKDIR /source
COPY pyproject.toml README.md LICENSE MANIFEST.in ./
COPY lantern_jax lantern_jax
RUN python -m venv /opt/lantern && /opt/lantern/bin/pip install --no-cache-dir "${JAX}" ".[serve,text,hub]"

FROM python:3.13-slim
RUN useradd --create-home lantern
COPY --from=built /opt/lantern /opt/lantern
ENV PATH=/opt/lantern/bin:$PATH XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface
RUN mkdir /cache && chown lantern /cache
USER lantern
# Compiled programs, and what is fetched from the hub: a volume keeps them for the next start.
VOLUME /cache
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"
ENTRYPOINT ["lantern", "serve", "--host", "0.0.0.0"]
CMD ["--model", "demo"]
