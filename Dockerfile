# An image of this package with the versions that CI tested, for CPUs, NVIDIA GPUs or Cloud TPUs:
#   docker build --build-arg=DEVICE=tpu --tag=REGION-docker.pkg.dev/PROJECT/REPOSITORY/gmlp_flax:1 .
FROM python:3.13-slim
ARG DEVICE=cpu

WORKDIR /src
COPY requirements.txt constraints-3.13.txt setup.cfg pyproject.toml README.md LICENSE ./
COPY gmlp_flax gmlp_flax
# The package's links to these two folders.
COPY configs configs
COPY benchmarks benchmarks
RUN case "$DEVICE" in cpu) extras=gcs ;; cuda | tpu) extras="gcs,$DEVICE" ;; \
      *) echo "DEVICE is '$DEVICE'; expected cpu, cuda or tpu" >&2; exit 2 ;; esac \
    && pip install --no-cache-dir --constraint=constraints-3.13.txt ".[$extras]" \
    && useradd --create-home --uid=1000 trainer

USER 1000
WORKDIR /home/trainer
CMD ["gmlp", "--help"]
