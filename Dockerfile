# base → system → venv → torch-cpu or torch-cuda → packages → image; beside them debs and deepspeed, which a context can
# replace. docker-bake.hcl has the versions and inputs; docs/image.md says how to build without the open internet.
# A step mounts the few files that it reads, so that another line elsewhere does not build it again.
ARG VARIANT=cuda

# A folder of wheels that pip takes before its index: nothing, unless a context of this name is given.
FROM scratch AS wheelhouse

FROM base AS debs-online
ARG SNAPSHOT
RUN --mount=type=bind,source=image/debs.sh,target=/debs.sh \
    --mount=type=bind,source=image/packages.txt,target=/packages.txt \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    /debs.sh /packages.txt /debs
FROM scratch AS debs
COPY --from=debs-online /debs /

# Stages of their own, beside the image: an argument is in the history of each step after it, and neither how strictly one
# asks nor whose mirror one takes is to change the digest.
FROM base AS debs-checked
ARG DEBS_LOCKED
RUN --mount=type=bind,from=debs,target=/debs \
    --mount=type=bind,source=image/check_debs.sh,target=/run/image/check_debs.sh \
    --mount=type=bind,source=image/list_debs.sh,target=/run/image/list_debs.sh \
    --mount=type=bind,source=requirements/debs.txt,target=/run/debs.txt \
    --mount=type=bind,source=requirements/base.txt,target=/run/base.txt \
    /run/image/check_debs.sh /debs /run/debs.txt /run/base.txt >/debs.txt
FROM base AS torch-cpu-index
ARG TORCH_CPU_INDEX
RUN printf '%s' "$TORCH_CPU_INDEX" >/index

FROM base AS system
ARG SOURCE_DATE_EPOCH
ENV LANG=C.UTF-8
RUN --mount=type=bind,from=debs,target=/debs \
    --mount=type=bind,from=debs-checked,source=/debs.txt,target=/run/debs.txt \
    --mount=type=bind,source=image/system.sh,target=/run/image/system.sh \
    /run/image/system.sh /debs /run/debs.txt

# These arguments are in the environment of each step from here on, and not in that of the image.
FROM system AS venv
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
ARG PYTHONHASHSEED=0 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
ARG PIP_FIND_LINKS=/wheelhouse PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_PROGRESS_BAR=off
RUN python3.11 -m venv /opt/venv

FROM venv AS torch-cpu
RUN --mount=type=bind,source=image/pip.sh,target=/run/pip.sh \
    --mount=type=bind,from=torch-cpu-index,source=/index,target=/run/torch-cpu-index \
    --mount=type=bind,source=requirements/cpu.txt,target=/run/cpu.txt \
    --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /run/pip.sh 'torch|setuptools' /run/cpu.txt

# Layers of about a gigabyte, which a host pulls and unpacks side by side.
FROM venv AS torch-cuda
RUN --mount=type=bind,source=image/pip.sh,target=/run/pip.sh \
    --mount=type=bind,source=requirements/cuda.txt,target=/run/cuda.txt \
    --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /run/pip.sh 'nvidia-(cublas|cudnn.*|curand|cufft)' /run/cuda.txt
RUN --mount=type=bind,source=image/pip.sh,target=/run/pip.sh \
    --mount=type=bind,source=image/cuda_home.sh,target=/run/cuda_home.sh \
    --mount=type=bind,source=requirements/cuda.txt,target=/run/cuda.txt \
    --mount=type=bind,source=requirements/toolkit.txt,target=/run/toolkit.txt \
    --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /run/pip.sh 'nvidia-(cusolver|cusparse.*|nccl.*|nvshmem.*|nvjitlink|nvtx|cufile|cuda-.*)|cuda-.*' /run/cuda.txt && \
    /run/pip.sh '.*' /run/toolkit.txt && /run/cuda_home.sh
ENV CUDA_HOME=/opt/venv/lib/python3.11/site-packages/nvidia/cu13 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN --mount=type=bind,source=image/pip.sh,target=/run/pip.sh \
    --mount=type=bind,source=requirements/cuda.txt,target=/run/cuda.txt \
    --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /run/pip.sh 'torch|triton|setuptools' /run/cuda.txt

# DeepSpeed's wheel stands on torch and on what its setup imports: another JupyterLab compiles nothing.
FROM torch-${VARIANT} AS deepspeed-build
ARG VARIANT
RUN --mount=type=bind,source=image/pip.sh,target=/run/pip.sh \
    --mount=type=bind,source=requirements/cpu.txt,target=/run/requirements/cpu.txt \
    --mount=type=bind,source=requirements/cuda.txt,target=/run/requirements/cuda.txt \
    --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /run/pip.sh '(annotated-types|einops|hjson|msgpack|ninja|numpy|packaging|psutil|py-cpuinfo|pydantic.*|tqdm|typing-.*)' \
      /run/requirements/${VARIANT}.txt
COPY image/deepspeed_wheel.sh image/deepspeed_ops.py image/cxx.sh image/nvcc.sh image/shm_avx2.h /source/image/
COPY requirements/${VARIANT}.txt /source/requirements/
ARG SOURCE_DATE_EPOCH DS_OPS TORCH_CUDA_ARCH_LIST MAX_JOBS
RUN --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /source/image/deepspeed_wheel.sh ${VARIANT} /wheels
FROM scratch AS deepspeed
COPY --from=deepspeed-build /wheels /

FROM torch-${VARIANT} AS packages
ARG VARIANT
RUN --mount=type=bind,source=image/pip.sh,target=/run/pip.sh \
    --mount=type=bind,source=requirements,target=/run/requirements \
    --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /run/pip.sh '!deepspeed' /run/requirements/${VARIANT}.txt /run/requirements/image.txt

FROM packages AS image
RUN --mount=type=bind,from=deepspeed,target=/wheels \
    pip install --no-index --no-deps /wheels/deepspeed-*.whl
ARG SOURCE_DATE_EPOCH VERSION REVISION TORCH CUDA DS_OPS TORCH_CUDA_ARCH_LIST
RUN --mount=type=bind,target=/context \
    /context/image/product.sh
# What a user's pip or uv may not replace: torch, its CUDA, and what is compiled against them.
ENV PIP_CONSTRAINT=/opt/roundhouse/constraints.txt UV_CONSTRAINT=/opt/roundhouse/constraints.txt
WORKDIR /workspace
# ssh where a key is given, JupyterLab where a password is; nothing listens otherwise.
EXPOSE 22 8888
# Unhealthy where a training makes no step any more, or has failed and the container stays.
HEALTHCHECK --interval=30s --timeout=20s --start-period=60s --retries=3 CMD ["roundhouse", "health"]
ENTRYPOINT ["tini", "-g", "--", "roundhouse"]
CMD ["up"]
