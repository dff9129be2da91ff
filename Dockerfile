# Images with the programs of txl_tf, for CPUs and for NVIDIA GPUs:
#
#   docker build --target cpu -t txl_tf:cpu .
#   docker build --target gpu -t txl_tf:gpu .
#   docker run --rm -v "$PWD/runs:/txl_tf/runs" txl_tf:cpu txl generate runs/books --prompt 'once upon'
#   docker run --rm --gpus all -v "$PWD:/work" -w /work txl_tf:gpu txl train --preset small \
#       --data_dir data/books --model_dir runs/books
#
# The image for GPUs needs a driver and the NVIDIA Container Toolkit on the host; CUDA itself comes
# with TensorFlow's packages.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS base
WORKDIR /txl_tf
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
COPY . .

FROM base AS cpu
RUN pip install -e '.[hub,lab,subword]'

FROM base AS gpu
RUN pip install -e '.[gpu,hub,lab,subword]'
