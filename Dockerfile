# dp_prior in a container, for CPUs or NVIDIA GPUs, on x86-64 or arm64 (docs/processes.md):
#   docker build -t dp-prior .
#   docker build -t dp-prior:cuda --build-arg DEVICE=cuda .
#   docker run --rm --gpus all --shm-size 8g -v "$PWD:/work" dp-prior:cuda dp-prior train mine.json
# Start one process, or torchrun: a container ends with its first process, which has to get the SIGTERM of docker stop.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# cpu or cuda: the build of torch. PyPI's brings the libraries of CUDA, so the driver of the host is enough.
ARG DEVICE=cpu
ARG EXTRAS=lerobot,zarr,video,serve,onnx,plots

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /opt/dp_prior
COPY constraints.txt ./
RUN case "$DEVICE" in \
        cpu) index="--extra-index-url https://download.pytorch.org/whl/cpu" ;; \
        cuda) index="" ;; \
        *) echo "DEVICE is '$DEVICE'; expected cpu or cuda" >&2; exit 64 ;; \
    esac \
    && pip install -c constraints.txt $index torch

COPY setup.py pyproject.toml README.md LICENSE train_policy.py ./
COPY dp_prior dp_prior
COPY dp_prior_client dp_prior_client
COPY plugins plugins
COPY configs configs
RUN pip install -c constraints.txt ".[$EXTRAS]"

WORKDIR /work
CMD ["dp-prior", "--help"]
