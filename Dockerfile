# Base → system → torch-cpu or torch-cuda → packages → image; beside them debs and deepspeed, which a context can replace.
# docker-bake.hcl has the versions and inputs; docs/image.md says how to build where there is no open internet.
ARG VARIANT=cuda

# A folder of wheels that pip takes before its index: nothing, unless a context of this name is given.
FROM scratch AS wheelhouse

FROM base AS debs-online
ARG SNAPSHOT
RUN --mount=type=bind,target=/context --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    /context/image/debs.sh /context/image/packages.txt /debs
FROM scratch AS debs
COPY --from=debs-online /debs /

FROM base AS system
ARG SOURCE_DATE_EPOCH DEBS_LOCKED
ENV LANG=C.UTF-8
RUN --mount=type=bind,target=/context --mount=type=bind,from=debs,target=/debs \
    /context/image/system.sh /debs /context/requirements/debs.txt

# Arguments are there for each RUN of the stages that build on this one, and not in the image's environment.
FROM system AS venv
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
ARG SOURCE_DATE_EPOCH PYTHONHASHSEED=0 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
ARG PIP_FIND_LINKS=/wheelhouse PIP_CERT=/etc/ssl/certs/ca-certificates.crt
RUN python3.11 -m venv /opt/venv

FROM venv AS torch-cpu
ARG TORCH_CPU_INDEX
RUN --mount=type=bind,target=/context --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /context/image/pip.sh 'torch|setuptools' /context/requirements/cpu.txt

# Several layers of about a gigabyte, which a host pulls and unpacks side by side; those that change least come first.
FROM venv AS torch-cuda
RUN --mount=type=bind,target=/context --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /context/image/pip.sh 'nvidia-(cublas|cudnn.*|curand|cufft)' /context/requirements/cuda.txt
RUN --mount=type=bind,target=/context --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /context/image/pip.sh 'nvidia-(cusolver|cusparse.*|nccl.*|nvshmem.*|nvjitlink|nvtx|cufile|cuda-.*)|cuda-.*' \
      /context/requirements/cuda.txt && \
    /context/image/pip.sh '.*' /context/requirements/toolkit.txt && \
    /context/image/cuda_home.sh
ENV CUDA_HOME=/opt/venv/lib/python3.11/site-packages/nvidia/cu13 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN --mount=type=bind,target=/context --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /context/image/pip.sh 'torch|triton|setuptools' /context/requirements/cuda.txt

# DeepSpeed's wheel with its ops. It stands on torch and what its setup imports, so that another JupyterLab does not
# compile for half an hour.
FROM torch-${VARIANT} AS deepspeed-build
ARG VARIANT
RUN --mount=type=bind,target=/context --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /context/image/pip.sh '(annotated-types|einops|hjson|msgpack|ninja|numpy|packaging|psutil|py-cpuinfo|pydantic.*|tqdm|typing-.*)' \
      /context/requirements/${VARIANT}.txt
ARG DS_OPS TORCH_CUDA_ARCH_LIST MAX_JOBS
RUN --mount=type=bind,target=/context --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /context/image/deepspeed_wheel.sh ${VARIANT} /wheels
FROM scratch AS deepspeed
COPY --from=deepspeed-build /wheels /

FROM torch-${VARIANT} AS packages
ARG VARIANT
RUN --mount=type=bind,target=/context --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=secret,id=pip,target=/etc/pip.conf \
    /context/image/pip.sh '!deepspeed' /context/requirements/${VARIANT}.txt /context/requirements/image.txt

FROM packages AS image
RUN --mount=type=bind,from=deepspeed,target=/wheels \
    pip install --no-index --no-deps /wheels/deepspeed-*.whl
ARG VERSION REVISION TORCH CUDA DS_OPS TORCH_CUDA_ARCH_LIST
RUN --mount=type=bind,target=/context \
    /context/image/product.sh
# What a user's pip may not replace: torch, its CUDA and what is compiled against them.
ENV PIP_CONSTRAINT=/opt/roundhouse/constraints.txt
WORKDIR /workspace
ENTRYPOINT ["tini", "-g", "--", "roundhouse"]
CMD ["up"]
