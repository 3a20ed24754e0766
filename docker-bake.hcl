# docker buildx bake [cuda|cpu|debs|release] --print     # every variable can be set in the environment

# The versions. A row is a published tag, all else is derived, the README's table too (`python image/table.py`; a test
# compares). A row without a lock is not built by us: its wheels are on an index of their own, or nobody has run it yet.
variable "IMAGES" {
  default = [
    { name = "cuda", torch = "2.13.0", cuda = "13.0", driver = "580", lock = "cuda" },
    { name = "cpu", torch = "2.13.0", cuda = "", driver = "", lock = "cpu" },
    { name = "cuda12", torch = "2.13.0", cuda = "12.6", driver = "525", lock = "" },
    { name = "next", torch = "2.15.0", cuda = "13.2", driver = "580", lock = "" },
  ]
}

# The public name, and the release: templates use both.
variable "IMAGE" { default = "ghcr.io/roundhouse-train/roundhouse" }
variable "VERSION" { default = "0.1.0" }
variable "REVISION" { default = "unknown" }
variable "BUILDER" { default = "unknown" } # another BuildKit may compress to other bytes; image/build.py says which it is

# The date of the locks, which every file of the image carries that is not older: `make lock` moves it. A commit's own
# date would give each layer a new digest for a changed README.
variable "SOURCE_DATE_EPOCH" { default = "1795910400" }

# Which DeepSpeed ops are built ahead, and for which GPUs. A quick build: TORCH_CUDA_ARCH_LIST=9.0 DS_OPS_CUDA="FUSED_ADAM CPU_ADAM UTILS"
variable "DS_OPS_CUDA" {
  default = "FUSED_ADAM FUSED_LAMB FUSED_LION CPU_ADAM CPU_ADAGRAD CPU_LION AIO PIN_MEMORY UTILS QUANTIZER DEEP_COMPILE"
}
variable "DS_OPS_CPU" { default = "CPU_ADAM CPU_ADAGRAD CPU_LION FUSED_ADAM PIN_MEMORY SHM_COMM" }
variable "TORCH_CUDA_ARCH_LIST" { default = "8.0;8.6;8.9;9.0;10.0;12.0+PTX" }
variable "MAX_JOBS" { default = "" }

# Inputs that can be replaced where the open internet is not there (docs/image.md). Contexts:
variable "BASE" { default = "docker-image://docker.io/library/debian:bookworm-slim" } # target:rootfs after `make base`
variable "ROOTFS" { default = "build/base" }
variable "WHEELHOUSE" { default = "" } # a folder of wheels that pip takes before its index
variable "DEBS" { default = "" }       # a folder of .deb files that `make debs` saved
variable "DEEPSPEED" { default = "" }  # a folder with the wheel that image/deepspeed_wheel.sh made
# Build arguments:
variable "DEBS_LOCKED" { default = "0" } # 1: refuse .deb files that are not in requirements/debs.txt
variable "TORCH_CPU_INDEX" { default = "https://download.pytorch.org/whl/cpu" }
variable "SNAPSHOT" { default = "" } # Debian's archive of one day, at its snapshot service
# Files that are there during the build only:
variable "CA_BUNDLE" { default = "" }  # a bundle of certificates
variable "PIP_CONF" { default = "" } # a pip.conf
variable "NETWORK" { default = "default" }

group "default" { targets = ["cuda"] }

target "_common" {
  network = NETWORK
  contexts = {
    for name, value in { base = BASE, wheelhouse = WHEELHOUSE, debs = DEBS, deepspeed = DEEPSPEED } : name => value
    if value != ""
  }
  secret = compact([CA_BUNDLE == "" ? "" : "id=ca,src=${CA_BUNDLE}", PIP_CONF == "" ? "" : "id=pip,src=${PIP_CONF}"])
  # Attestations hold times: releases have them, outside the digest that two builds share.
  attest = ["type=provenance,disabled=true"]
  args = {
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
    DEBS_LOCKED       = DEBS_LOCKED
    SNAPSHOT          = SNAPSHOT
    TORCH_CPU_INDEX   = TORCH_CPU_INDEX
    REVISION          = REVISION
    VERSION           = VERSION
  }
}

target "image" {
  inherits = ["_common"]
  matrix   = { row = [for row in IMAGES : row if row.lock != ""] }
  name     = row.name
  target   = "image"
  tags     = ["roundhouse:${row.name}"]
  args = {
    VARIANT              = row.lock
    TORCH                = row.torch
    CUDA                 = row.cuda
    DS_OPS               = row.cuda == "" ? DS_OPS_CPU : DS_OPS_CUDA
    TORCH_CUDA_ARCH_LIST = row.cuda == "" ? "" : TORCH_CUDA_ARCH_LIST
    MAX_JOBS             = MAX_JOBS
  }
  labels = {
    "org.opencontainers.image.title"    = "Roundhouse"
    "org.opencontainers.image.created"  = timeadd("1970-01-01T00:00:00Z", "${SOURCE_DATE_EPOCH}s")
    "org.opencontainers.image.version"  = VERSION
    "org.opencontainers.image.revision" = REVISION
    "org.opencontainers.image.licenses" = "Apache-2.0"
    "roundhouse.variant"                = row.name
    "roundhouse.builder"                = BUILDER
    "roundhouse.ops"                    = row.cuda == "" ? DS_OPS_CPU : DS_OPS_CUDA
    "roundhouse.architectures"          = row.cuda == "" ? "" : TORCH_CUDA_ARCH_LIST
  }
}

# The root file system of `make base` as the base image: BASE=target:rootfs.
target "rootfs" {
  context           = ROOTFS
  dockerfile-inline = "FROM scratch\nADD rootfs.tar /\n"
}

# The .deb files of a build, to build from again: DEBS=build/debs.
target "debs" {
  inherits = ["_common"]
  target   = "debs"
  output   = ["type=local,dest=build/debs"]
}

# DeepSpeed's wheel of a build, alone: wheel-cpu, wheel-cuda.
target "wheel" {
  inherits = [row.name]
  matrix   = { row = [for row in IMAGES : row if row.lock != ""] }
  name     = "wheel-${row.name}"
  target   = "deepspeed"
  tags     = []
  output   = ["type=local,dest=dist"]
}

target "release" {
  inherits = [row.name]
  matrix   = { row = [for row in IMAGES : row if row.lock != ""] }
  name     = "release-${row.name}"
  tags = concat(
    ["${IMAGE}:${VERSION}-${row.name}${row.cuda}-torch${row.torch}", "${IMAGE}:${VERSION}-${row.name}"],
    row.name == "cuda" ? ["${IMAGE}:${VERSION}"] : []
  )
  attest = ["type=sbom", "type=provenance,mode=max"]
  output = ["type=image,push=true,rewrite-timestamp=true,oci-mediatypes=true,compression=gzip,force-compression=true"]
}
