# Two images from one file: `api` needs no GPU and no CUDA, `worker` has the compiler and the
# libraries; the driver comes from the machine (NVIDIA Container Toolkit).
#
#   docker build --target api --tag gemm-tuner-api .
#   docker build --target worker --tag gemm-tuner-worker .

FROM python:3.12-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/tuner
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE MANIFEST.in ./
COPY api api
COPY kernels kernels
COPY migrations migrations
COPY tuner tuner

FROM build AS build-api
RUN /opt/tuner/bin/pip install --constraint constraints.txt '.[api,postgres]'

FROM build AS build-worker
RUN /opt/tuner/bin/pip install --constraint constraints.txt '.[worker,postgres]'

FROM python:3.12-slim-bookworm AS runtime
# A user that owns nothing but the cache; a volume mounted there takes over its owner.
RUN useradd --system --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tuner \
 && install --directory --owner=tuner --group=tuner /var/cache/gemm-tuner
ENV PATH=/opt/tuner/bin:$PATH HOME=/tmp TUNER_CACHE_DIR=/var/cache/gemm-tuner \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
ENTRYPOINT ["tuner"]

FROM runtime AS worker
COPY --from=build-worker /opt/tuner /opt/tuner
CMD ["worker"]

FROM runtime AS api
COPY --from=build-api /opt/tuner /opt/tuner
EXPOSE 8000
CMD ["serve", "--host", "0.0.0.0"]
