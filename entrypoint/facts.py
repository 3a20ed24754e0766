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
