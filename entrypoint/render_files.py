"""Rendered templates → files: each is whole or not there."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from entrypoint.errors import SettingError


def write_all(files: Mapping[str, str], folder: Path | None) -> Iterator[Path]:
    """Write each file under `folder`, which is made."""
    if folder is None:
        raise SettingError("`render all` has no folder to write to", fix="-o FOLDER")
    for name, text in files.items():
        path = folder / name
        write(path, text)
        yield path


def write(path: Path, text: str) -> None:
    """Replace the file at `path`; scripts can be executed. SettingError where that is not possible."""
    mode = 0o755 if text.startswith("#!") else 0o644
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.chmod(part, mode)
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        raise SettingError(
            f"-o {path}: {error.strerror}", fix="name a file in a folder that you may write to"
        ) from None
