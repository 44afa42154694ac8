"""Tell which data set lies in a folder; load it or check it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evenstep.data.split import Split
from evenstep.errors import InputError
from evenstep_research.data.files import load, located, missing, read_file, verify_file
from evenstep_research.data.imagenet import PARTS, image_folder, list_images
from evenstep_research.data.official import DATA_SETS, DataSet


@dataclass(frozen=True)
class FileCheck:
    """One file, or one part of a folder of images; `official` is None where there is no checksum to compare."""

    name: str
    images: int | None
    official: bool | None
    problem: str | None = None


@dataclass(frozen=True)
class FolderCheck:
    """What a folder holds."""

    data_set: str
    version: str
    folder: Path
    files: tuple[FileCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with any file."""
        return not any(file.problem for file in self.files)


def load_folder(directory: Path | str, *, verify: bool = False) -> Split:
    """Return the data set that lies in a folder, at its own size; a folder of images at 32 x 32."""
    found = _recognised(Path(directory))
    return image_folder(directory) if found is None else load(found, directory, side=found.side, verify=verify)


def check_folder(directory: Path | str) -> FolderCheck:
    """Read every file of the data set in a folder and compare checksums.

    Images in ImageNet's layout are counted, not read. They are ImageNet only if classes and counts are ImageNet's, and
    else "images".
    """
    found = _recognised(Path(directory))
    if found is None:
        listing = list_images(directory)
        counts = (len(listing.train), len(listing.val))
        parts = tuple(FileCheck(part, count, None) for part, count in zip(PARTS, counts, strict=True))
        name = "images" if listing.differs_from_imagenet else "imagenet"
        return FolderCheck(name, "images", Path(directory), parts)
    version, folder = located(found, Path(directory))
    files = []
    for file in version.files:
        images = official = problem = None
        try:
            images = len(read_file(found, version, file, folder)[0])
            verify_file(folder / file.name, file)
            official = None if file.digest is None else True
        except InputError as error:
            official, problem = False, str(error)
        files.append(FileCheck(file.name, images, official, problem))
    return FolderCheck(found.name, version.name, folder, tuple(files))


def _recognised(directory: Path) -> DataSet | None:
    """Return the data set of which a folder holds files, None for images in ImageNet's layout."""
    if not directory.is_dir():
        raise InputError(f"there is no folder '{directory}'; give the folder of a data set")
    found = [data_set for data_set in DATA_SETS if _holds_some(directory, data_set)]
    if len(found) > 1:
        folders = " or ".join(data_set.title for data_set in found)
        raise InputError(f"'{directory}' holds files of {folders}; give the folder of one of them")
    if found:
        return found[0]
    if all((directory / part).is_dir() for part in PARTS):
        return None
    raise InputError(f"'{directory}' holds no data set that `evenstep data list` names; give the folder of one")


def _holds_some(directory: Path, data_set: DataSet) -> bool:
    return any(
        len(missing(version, place)) < len(version.files)
        for version in data_set.versions
        for place in (directory, directory / version.folder)
    )
