"""What was seen on this machine. Facts hold no advice; None means "the machine does not say", never a guess."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as NVML lists it, before CUDA_VISIBLE_DEVICES."""

    index: int
    uuid: str
    name: str
    memory_bytes: int | None
    mig: tuple[str, ...] = ()  # UUIDs of its MIG instances
    fabric_state: str | None = None  # "completed", "failed", "in progress", "not started", "not supported"
    mig_enabled: bool | None = None  # True with an empty `mig`: CUDA finds nothing to run on; None: it has no MIG
    error: str | None = None  # NVML's words for a device that does not answer ("GPU is lost"), without uuid and name
    capability: str | None = None  # "9.0"
    ecc_uncorrected: int | None = None  # memory errors that could not be corrected, since the driver was loaded
    remap_pending: bool | None = None  # bad rows of memory are replaced at the next reset
    remap_failed: bool | None = None  # no spare rows are left: the card is to be replaced
    throttled: tuple[str, ...] = ()  # why the hardware holds its clocks down: "thermal", "power brake"


@dataclass(frozen=True, slots=True)
class Interface:
    """A kernel network name with its addresses."""

    name: str
    addresses: tuple[str, ...]  # with prefix length: "10.65.0.2/24", "fe80::1/64"
    up: bool  # IFF_UP and IFF_RUNNING
    mtu: int | None
    mbit_per_second: int | None  # None: not said (virtio, veth, bridges, tunnels, loopback)
    kind: str  # "loopback", "physical", "bond", "bridge", "veth", "vlan", "tunnel", "infiniband", "virtual", "unknown"
    master: str | None = None  # the bond or bridge that it belongs to
    vendor: str | None = None  # PCI vendor of the device below it: "0x1d0f"


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of an HCA."""

    device: str  # mlx5_0
    port: int
    active: bool
    gbit_per_second: float | None
    link_layer: str | None  # "InfiniBand" or "Ethernet"
    interface: str | None  # its network interface, where sysfs names one
    usable: bool  # its uverbs device can be opened read-write here


@dataclass(frozen=True, slots=True)
class FileSetting:
    """A line of a file that NCCL reads; what the environment says goes before it."""

    name: str
    value: str
    path: str


@dataclass(frozen=True, slots=True)
class Volume:
    """The folder that should outlive this machine."""

    path: str
    exists: bool | None  # None: no answer in time, as from a hard mount whose server is gone
    mounted: bool | None  # lies on a mount other than the root file system's
    filesystem: str | None  # "nfs4", "ext4", "overlay" …
    writable: bool | None  # by permission and mount flags; nothing was written to find out
    total_bytes: int | None
    free_bytes: int | None  # for an unprivileged writer
    mount_point: str | None = None  # of the mount that it lies on


@dataclass(frozen=True, slots=True)
class Software:
    """Versions beside the Python that runs this, read from files; None: not installed, or not said."""

    torch: str | None = None  # "2.13.0+cpu"
    torch_cuda: str | None = None  # the CUDA that it was built with: "13.0"
    nccl: str | None = None  # of the wheel beside it
    nccl_wanted: str | None = None  # that torch's metadata pin
    deepspeed: str | None = None
    ops: tuple[str, ...] = ()  # DeepSpeed's, built beforehand
    ops_torch: str | None = None  # what they were built for: "2.13"
    ops_cuda: str | None = None
    ops_promised: tuple[str, ...] = ()  # by the image's build.json
    python: str | None = None  # "3.11"
    architectures: tuple[str, ...] = ()  # compute capabilities that the image's ops were built for: "9.0", "12.0+PTX"
    build: str | None = None  # short digest of the image's build.json


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was seen, in one value."""

    hostname: str
    hostname_addresses: tuple[str, ...] | None  # empty: its name resolves to nothing; None: no answer in 0.1 s
    container: str | None  # "docker", "podman", "kubernetes", "lxc" …; None: none was seen
    cpus: int  # cores that this process may run on (affinity)
    cpu_quota: float | None  # cores that the cgroup allows; None: no limit or not said
    memory_bytes: int | None  # the smaller of the machine's and the cgroup's
    gpus: tuple[Gpu, ...] | None  # None: NVML could not be asked although a driver seems to be there
    driver_version: str | None
    driver_cuda: str | None  # newest CUDA that the driver speaks: "13.0"
    interfaces: tuple[Interface, ...]  # in the kernel's order
    rdma: tuple[RdmaPort, ...]
    nccl_conf: tuple[FileSetting, ...]  # in NCCL's order: of several with one name the first counts
    boot_id: str | None
    routes: tuple[tuple[str, str], ...]  # (address asked for, own source address toward it)
    shm_bytes: int | None  # the smaller of /dev/shm and the cgroup's memory limit, which its pages count against
    memlock_bytes: int | None  # soft limit; None: unlimited
    stack_bytes: int | None  # soft limit; None: unlimited
    open_files: int | None  # soft limit; None: unlimited
    volume: Volume
    listening_ports: tuple[int, ...]  # TCP, on any address of this network namespace
    software: Software | None = None
    user_id: int | None = None  # effective
    capabilities: int | None = None  # effective, as the kernel's bits (capabilities(7))
