# The server in a container: `docker build -t gguf-spec .`, then see docs/docker.md. Everything comes from Debian, PyPI and npm's registry.
ARG BASE=debian:trixie-slim

FROM ${BASE} AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# llama.cpp comes ready made, for all generations of processors, and so do our kernels: the compiler is for them. pip fetches npm, which is smaller
# than Debian's. With CMAKE_ARGS, llama.cpp is compiled, for the processor of this machine.
ARG CMAKE_ARGS=
# `images`, `cuda`, `cuda-12` or `vulkan`: another ready-made build (docs/gpu.md, docs/images.md)
ARG GGUF_SPEC_BUILD_LLAMA=
RUN python3 -m venv /opt/gguf-spec \
    && GGUF_SPEC_BUILD_KERNELS=all XDG_CACHE_HOME=/tmp/cache /opt/gguf-spec/bin/pip install --no-cache-dir --constraint scripts/build/constraints.txt '.[server]'

FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libstdc++6 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home gguf \
    && install --directory --owner gguf --group gguf /models
COPY --from=build /opt/gguf-spec /opt/gguf-spec
# Models, measurements and settings lie in the volume.
ENV PATH=/opt/gguf-spec/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/models/huggingface \
    XDG_CACHE_HOME=/models/cache \
    XDG_CONFIG_HOME=/models/config \
    XDG_DATA_HOME=/models/data \
    GGUF_SPEC_HOST=0.0.0.0 \
    GGUF_SPEC_PORT=8080
USER gguf
WORKDIR /models
VOLUME /models
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python3", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"GGUF_SPEC_PORT\"]}/health', timeout=4)"]
ENTRYPOINT ["gguf-spec"]
CMD ["serve"]
