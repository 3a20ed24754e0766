# Stages: debs → system → torch-cpu or torch-cuda → packages → image, and deepspeed beside it.
# docker-bake.hcl has the versions and the contexts; `make image` calls it.
ARG VARIANT=cpu
# Inputs that a named context of the same name replaces.
FROM scratch AS wheelhouse

FROM base AS debs-online
ARG SNAPSHOT
RUN --mount=type=bind,target=/context --mount=type=secret,id=ca \
    SNAPSHOT=$SNAPSHOT /context/image/debs.sh /context/image/packages.txt /debs
FROM scratch AS debs
COPY --from=debs-online /debs /

FROM base AS system
ARG SOURCE_DATE_EPOCH
ENV LANG=C.UTF-8
RUN --mount=type=bind,target=/context --mount=type=bind,from=debs,target=/debs \
    /context/image/system.sh /debs

FROM system AS venv
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
RUN PYTHONHASHSEED=0 python3.11 -m venv /opt/venv

FROM venv AS torch-cpu
ARG SOURCE_DATE_EPOCH TORCH_CPU_INDEX
RUN --mount=type=bind,target=/context --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    /context/image/pip.sh 'torch|setuptools' /context/requirements/cpu.txt

FROM torch-${VARIANT} AS packages
ARG SOURCE_DATE_EPOCH VARIANT
RUN --mount=type=bind,target=/context --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    /context/image/pip.sh '!torch|setuptools|deepspeed|triton|nvidia-(cu|nccl|nv[a-l,n-z]).*|cuda-.*' \
    /context/requirements/${VARIANT}.txt /context/requirements/image.txt

FROM packages AS image
ARG SOURCE_DATE_EPOCH VARIANT
# First image: DeepSpeed without its ops.
RUN --mount=type=bind,target=/context --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=secret,id=ca --mount=type=secret,id=pip --mount=type=tmpfs,target=/tmp \
    awk '/^[a-z]/ {t = /^deepspeed==/} t' /context/requirements/${VARIANT}.txt > /tmp/ds.txt && \
    PIP_CERT=/run/secrets/ca pip install --no-cache-dir --no-deps --no-build-isolation --use-pep517 --require-hashes -r /tmp/ds.txt
RUN --mount=type=bind,target=/context \
    mkdir /opt/roundhouse && cd /context && \
    cp -r entrypoint train templates LICENSE pyproject.toml /opt/roundhouse/ && \
    grep -E '^(torch|triton|deepspeed|numpy|nvidia-.*|cuda-.*)==' requirements/${VARIANT}.txt | sed 's/ *[;\\].*//' | sort -u > /opt/roundhouse/constraints.txt && \
    install -m 755 image/roundhouse /opt/venv/bin/roundhouse && \
    chmod -R u=rwX,go=rX /opt/roundhouse && PYTHONHASHSEED=0 python -m compileall -q --invalidation-mode checked-hash /opt/roundhouse
ENV PIP_CONSTRAINT=/opt/roundhouse/constraints.txt
ENTRYPOINT ["tini", "-g", "--", "roundhouse"]
CMD ["up"]
