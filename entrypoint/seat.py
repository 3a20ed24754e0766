"""A node's place at the roll call: where it is held, as which node this one comes, and what it may know."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from entrypoint import secret
from entrypoint.messages import Secret
from entrypoint.values import endpoint

BEAT_SECONDS = 2.0
SILENCE_SECONDS = 15.0
SAY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Seat:
    """`run`: its folder, as this node sees it. `rank` None: it is given one by arrival."""

    run: Path
    nodes: int
    rank: int | None
    host: str
    address: str  # of the primary
    port: int
    wait_seconds: float
    token: str | None = field(default=None, repr=False)
    peers: tuple[str, ...] = ()  # addresses in rank order, where the platform tells them
    bind: str | None = None  # node 0's own address on the cluster network; None: `address`

    @property
    def endpoint(self) -> str:
        return endpoint(self.address, self.port)

    @property
    def token_path(self) -> Path:
        return secret.token_path(self.run)

    def nonce_path(self, name: str) -> Path:
        """A file that node 0 makes for this meeting, as this node sees it: whoever reads it has the same volume."""
        return self.run.with_name(f".{self.run.name}.{name}.meeting")

    def own_secret(self) -> Secret | None:
        """What this node can prove now; None: the file of the volume is not (yet) to be read."""
        return secret.given(self.token) if self.token else secret.read(self.token_path)

    def host_secret(self) -> Secret:
        """Node 0's, which decides what the others must know."""
        if self.token:
            return secret.given(self.token)
        return secret.make(self.token_path) or secret.of_run(self.run.name)

    def at(self, rank: int) -> "Seat":
        return replace(self, rank=rank)
