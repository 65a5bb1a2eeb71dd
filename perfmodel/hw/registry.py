"""Find a GPU by any of its names: the user's hwdb folder over the shipped one, one TOML a GPU."""

from __future__ import annotations

import re
import stat
import warnings
from functools import lru_cache
from pathlib import Path

from perfmodel._resources import look, shipped, stamped_layers
from perfmodel.errors import InputError, InputWarning, shown, unknown_name
from perfmodel.hw.schema import Sheet, build, read_sheet
from perfmodel.hw.spec import GpuSpec

_BRANDS = re.compile(r"^(nvidia|tesla|geforce)+")
_ARCH = re.compile(r"sm_\d{2,3}")
Stamp = tuple[int, int]
Layers = tuple[tuple[Path, int], ...]


def gpus() -> list[str]:
    """Canonical names of all known GPUs, one's own included.

    Returns
    -------
    list of str
        Names that `gpu` takes, sorted. No file is read.

    Examples
    --------
    >>> import perfmodel as pm
    >>> "h100_sxm" in pm.gpus()
    True
    """
    return sorted(files())


def gpu(name: str | GpuSpec) -> GpuSpec:
    """The GPU of a name.

    Parameters
    ----------
    name : str or GpuSpec
        A canonical name ("h100_sxm"), an alias ("H100") or the driver's ("NVIDIA H100 80GB HBM3"); case, spaces, dashes and the leading
        brand do not matter. A GpuSpec is returned as it is.

    Returns
    -------
    GpuSpec
        Datasheet and measured facts: rates in flop/s, bandwidths in bytes/s, latencies in s, sizes in bytes.

    Raises
    ------
    InputError
        For an unknown name, with the nearest known ones, and for a file of one's own that cannot be read.

    Notes
    -----
    Only a canonical name avoids looking into the other files.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.gpu("NVIDIA H100 80GB HBM3").sms
    132
    """
    if isinstance(name, GpuSpec):
        return name
    if not isinstance(name, str):
        raise InputError(f"a GPU is a name or a GpuSpec, not {type(name).__name__} {shown(name)}")
    wanted, layered = normalise(name), stamped_layers("hwdb")
    path = _canonical(layered).get(wanted)
    if path is not None:
        return _load(path, layered)
    own = tuple(_state(path) for path in _files(layered[:-1]).values())
    spec = _load(_aliased(name, layered, own), layered)
    if wanted not in map(normalise, (spec.full_name, *spec.aliases)):  # its file was edited in the meantime
        _aliased.cache_clear()
        spec = _load(_aliased(name, layered, own), layered)
    return spec


def files() -> dict[str, Path]:
    """Canonical name -> file; a user's file replaces the shipped one of the same name."""
    return _files(stamped_layers("hwdb"))


@lru_cache(maxsize=16)
def _files(layered: Layers) -> dict[str, Path]:
    """Listing of folders, again only when one of them has changed."""
    return {path.stem: path for folder, _ in reversed(layered) for path in sorted(folder.glob("*.toml"))}


@lru_cache(maxsize=8)
def _canonical(layered: Layers) -> dict[str, Path]:
    return {normalise(stem): path for stem, path in _files(layered).items()}


@lru_cache(maxsize=256)
def _aliased(name: str, layered: Layers, own: tuple[Stamp | None, ...]) -> Path:
    """File of the GPU with that alias, remembered while the folders and the user's own files (`own`) are as they were."""
    index, broken = aliases()
    wanted = normalise(name)
    if wanted not in index:
        raise broken[0] if broken else unknown_name("GPU", name, files())
    for error in broken:
        left_out(error)
    return files()[index[wanted]]


def left_out(error: InputError) -> None:
    """Say once of a file that cannot be used, where others answer."""
    warnings.warn(f"left out: {error}", InputWarning, stacklevel=3)


def load(path: Path) -> GpuSpec:
    """The GPU of one file, from memory while neither it nor its architecture's file has changed."""
    return _load(path, stamped_layers("hwdb"))


def _load(path: Path, layered: Layers) -> GpuSpec:
    stamp = stamp_of(path)
    return _spec(path, stamp, *_arch(_sheet(path, stamp).text["arch"], path, layered))


def arch_file(arch: str, wanted_by: Path | str) -> Path:
    """File of the facts common to a compute capability ("sm_90")."""
    return _arch(arch, wanted_by, stamped_layers("hwdb"))[0]


def _arch(arch: str, wanted_by: Path | str, layered: Layers) -> tuple[Path, Stamp]:
    candidates = _arch_candidates(arch, layered)
    for path in candidates if _ARCH.fullmatch(arch) else ():
        stamp = _state(path)
        if stamp is not None:
            return path, stamp
    known = sorted({p.stem for folder, _ in layered for p in (folder / "arch").glob("*.toml")})
    raise InputError(f"{wanted_by}: unknown arch {arch[:60]!r}: use one of {', '.join(known)} or add one to the folder arch beside it")


@lru_cache(maxsize=64)
def _arch_candidates(arch: str, layered: Layers) -> list[Path]:
    return [folder / "arch" / f"{arch}.toml" for folder, _ in layered]


def arch_sheet(arch: str, wanted_by: Path | str) -> Sheet:
    """Facts common to a compute capability, with its `lint` and `draft` tables."""
    path = arch_file(arch, wanted_by)
    return _sheet(path, stamp_of(path))


def aliases() -> tuple[dict[str, str], list[InputError]]:
    """Normalised alias or driver name -> canonical name, and the files that could not be read. A user's alias wins."""
    index: dict[str, str] = {}
    broken: list[InputError] = []
    for stem, path in files().items():
        try:
            sheet = _sheet(path, stamp_of(path))
        except InputError as error:
            broken.append(error)
            continue
        index.update(dict.fromkeys(map(normalise, (*sheet.aliases, sheet.text["full_name"])), stem))
    return index, broken


@lru_cache(maxsize=4096)
def normalise(name: str) -> str:
    """Reduce a name to what tells GPUs apart: lower case letters and digits without the leading brand."""
    return _BRANDS.sub("", re.sub(r"[^a-z0-9]", "", name.lower()))


def stamp_of(path: Path) -> Stamp:
    """What tells whether a file has changed; raises InputError for one that cannot be looked at."""
    try:
        state, reason = look(path), "No such file or directory"
    except OSError as error:
        state, reason = None, str(error.strerror)
    if state is None:
        raise InputError(f"{path}: cannot be read ({reason}): make it readable or delete it")
    return state.st_mtime_ns, state.st_size


def _state(path: Path) -> Stamp | None:
    """Stamp of a plain file; None where there is none."""
    try:
        state = look(path)
    except OSError:
        return None
    return (state.st_mtime_ns, state.st_size) if state is not None and stat.S_ISREG(state.st_mode) else None


@lru_cache(maxsize=512)
def _sheet(path: Path, stamp: Stamp) -> Sheet:
    return read_sheet(path)


@lru_cache(maxsize=512)
def _spec(path: Path, stamp: Stamp, arch: Path, arch_stamp: Stamp) -> GpuSpec:
    spec = build(_sheet(path, stamp), _sheet(arch, arch_stamp))
    if not path.is_relative_to(shipped("hwdb")):
        from perfmodel.hw.lint import lint

        if found := lint(spec):
            warnings.warn(f"{path}: {found[0]} ({len(found)} in all: perfmodel gpus lint {spec.name})", InputWarning, stacklevel=4)
    return spec
